"""The interface that nsqd provides to its HTTP API."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from nsq_compat.policy.dead_letters import DeadLetterQueues, Transfer
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import ClientStats
from nsq_compat.web.metrics import Metrics


class NsqdOptions(Protocol):
    """Options that the API reads, named like their config keys. /info shows others."""

    broadcast_address: str
    max_msg_size: int
    max_body_size: int
    max_rdy_count: int
    msg_timeout: int
    """Nanoseconds."""
    max_defer_timeout: int
    """Nanoseconds."""
    max_req_timeout: int
    """Nanoseconds."""
    metrics_max_names: int

    @property
    def publishing_over_http(self) -> bool: ...
    @property
    def peeking_over_http(self) -> bool: ...


class NsqdService(Protocol):
    broker: Broker
    metrics: Metrics
    tcp_port: int
    """The bound port; -1 for a unix socket."""
    http_port: int
    """As `tcp_port`; 0 if HTTP is off."""
    started_at: float
    """Unix seconds."""
    loop_lag: float
    """Seconds for which timers of the event loop were overdue since the start, in all."""

    @property
    def options(self) -> NsqdOptions: ...

    @property
    def draining(self) -> bool: ...
    @property
    def dead_letters(self) -> DeadLetterQueues: ...

    def await_transfer(self, transfer: Transfer) -> None:
        """Wait until the dead-letter topic has these messages or has refused them, for some seconds at most."""

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is true, or for this time, while other clients are served; returns whether it was true.

        It may be false again, because all that wait for it go on. When nsqd stops, the wait is over.
        """

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        """Call it soon, in the event loop, which serves other clients after every few of these calls."""

    def now(self) -> float:
        """Monotonic seconds."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds."""

    def mirroring(self) -> dict[str, Any]:
        """The answer of /mirror: `standby` (None without one), `accepts`, and `primaries`."""

    def adopt(self, identity: str) -> list[str]:
        """Take over a primary's topics; returns their names. Raises ``KeyError``, ``ValueError``, ``OSError``."""

    def health(self) -> str:
        """``OK``, or ``NOK - <error>`` after a failed write or read."""

    def disk_space(self) -> tuple[int, int]:
        """Bytes that nsqd may still use on the file system of the data path, and its size; zeros if unknown."""

    def read_errors(self) -> int:
        """Failed reads of logs since the start."""

    def producers(self) -> Iterable[ClientStats]:
        """TCP clients that have published, with all their topics in `pub_counts`."""

    def close_client(self, address: str) -> bool:
        """Close the connection of the client with this remote address; returns whether there is one."""

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

    def drain(self) -> None:
        """Accept no more messages, and stop when consumers have finished the rest. It cannot be undone."""

    def save_metadata(self) -> None:
        """Save the names and paused states of topics and channels. The daemon logs failures."""
