"""What nsqd's HTTP API asks of the daemon."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.stats import ClientStats
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.profiling import RunningProcess


class NsqdOptions(Protocol):
    """The options the API reads by itself, spelled like their config keys. Durations are integer nanoseconds."""

    @property
    def broadcast_address(self) -> str: ...
    @property
    def max_msg_size(self) -> int: ...
    @property
    def max_body_size(self) -> int: ...
    @property
    def max_defer_timeout(self) -> int: ...
    @property
    def publishing_over_http(self) -> bool: ...
    @property
    def peeking_over_http(self) -> bool: ...
    @property
    def max_heartbeat_interval(self) -> int: ...
    @property
    def max_output_buffer_size(self) -> int: ...
    @property
    def max_output_buffer_timeout(self) -> int: ...
    @property
    def max_deflate_level(self) -> int: ...
    @property
    def topology_zone(self) -> str: ...
    @property
    def topology_region(self) -> str: ...
    @property
    def metrics_max_names(self) -> int: ...


class NsqdService(RunningProcess, Protocol):
    """The daemon, as its HTTP API sees it."""

    @property
    def broker(self) -> Broker: ...

    @property
    def options(self) -> NsqdOptions: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def version(self) -> str:
        """What is announced, ``1.3.0``."""

    @property
    def version_line(self) -> str:
        """``nsqd v1.3.0 (built w/...)``: how the text form of /stats begins."""

    @property
    def hostname(self) -> str: ...

    @property
    def tcp_port(self) -> int:
        """The port really bound; -1 for a unix socket."""

    @property
    def http_port(self) -> int:
        """As `tcp_port`; 0 when HTTP is off."""

    @property
    def started_at(self) -> float:
        """Unix seconds."""

    def now(self) -> float:
        """Monotonic seconds."""

    def let_others_run(self) -> None:
        """Between two steps of something that takes long: returns when other clients have had their turn."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds."""

    def health(self) -> str:
        """``OK``, or ``NOK - <error>`` after a failed write or read."""

    def read_errors(self) -> int:
        """Reads of the logs that the system refused since the daemon started."""

    def producers(self) -> Sequence[ClientStats]:
        """The TCP clients that have published, with every topic in `pub_counts`."""

    def connection_count(self) -> int:
        """TCP clients."""

    def memory(self) -> Mapping[str, int]:
        """The nine figures of /stats, by their JSON names and in NSQ's order."""

    def config_value(self, name: str) -> object:
        """The present value of an option that has a flag, by its config key, or of ``drain`` and ``policies``.

        bool, int (durations in nanoseconds; log levels, TLS settings as NSQ numbers them), str, float, or a sequence.
        Raises ``KeyError``.
        """

    def set_log_level(self, text: str) -> None:
        """``debug`` to ``fatal`` in any case. Raises ``ValueError``."""

    def set_lookupd_addresses(self, addresses: Sequence[str] | None) -> None:
        """The nsqlookupds to be registered with from now on; None (JSON's null) for none."""

    def set_policies(self, written: object) -> None:
        """What ``config_value("policies")`` is from now on: a list of mappings. Raises ``PolicyError``."""

    @property
    def draining(self) -> bool: ...

    def drain(self) -> None:
        """Take no more messages, and stop when consumers have what there is. There is no way back."""

    def save_metadata(self) -> None:
        """Write the names and paused states of topics and channels; failures are the daemon's to log."""
