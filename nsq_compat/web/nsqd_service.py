"""The interface that nsqd provides to its HTTP API."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.stats import ClientStats
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.profiling import RunningProcess


class NsqdOptions(Protocol):
    """Options that the API reads, named like their config keys. Durations are integer nanoseconds."""

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
    @property
    def broker(self) -> Broker: ...

    @property
    def options(self) -> NsqdOptions: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def version(self) -> str:
        """The announced version, ``1.3.0``."""

    @property
    def version_line(self) -> str:
        """``nsqd v1.3.0 (built w/...)``, the first line of /stats as text."""

    @property
    def hostname(self) -> str: ...

    @property
    def tcp_port(self) -> int:
        """The bound port; -1 for a unix socket."""

    @property
    def http_port(self) -> int:
        """As `tcp_port`; 0 if HTTP is off."""

    @property
    def started_at(self) -> float:
        """Unix seconds."""

    def now(self) -> float:
        """Monotonic seconds."""

    def let_others_run(self) -> None:
        """Let the event loop serve other clients. For calls between two steps of long work."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds."""

    def health(self) -> str:
        """``OK``, or ``NOK - <error>`` after a failed write or read."""

    def read_errors(self) -> int:
        """Failed reads of logs since the start."""

    def producers(self) -> Sequence[ClientStats]:
        """TCP clients that have published, with all their topics in `pub_counts`."""

    def connection_count(self) -> int:
        """TCP clients."""

    def memory(self) -> Mapping[str, int]:
        """The nine memory values of /stats, by their JSON names, in NSQ's order."""

    def config_value(self, name: str) -> object:
        """The current value of an option that has a flag, by its config key, or of ``drain`` or ``policies``.

        bool, int (durations in nanoseconds; log levels and TLS settings as NSQ numbers them), str, float, or a
        sequence. Raises ``KeyError``.
        """

    def set_log_level(self, text: str) -> None:
        """``debug`` to ``fatal``, in upper or lower case. Raises ``ValueError``."""

    def set_lookupd_addresses(self, addresses: Sequence[str] | None) -> None:
        """Replace the nsqlookupds to register with. None (JSON's null) is none."""

    def set_policies(self, written: object) -> None:
        """Replace ``config_value("policies")``, a list of mappings. Raises ``PolicyError``."""

    @property
    def draining(self) -> bool: ...

    def drain(self) -> None:
        """Accept no more messages, and stop when consumers have finished the rest. It cannot be undone."""

    def save_metadata(self) -> None:
        """Save the names and paused states of topics and channels. The daemon logs failures."""
