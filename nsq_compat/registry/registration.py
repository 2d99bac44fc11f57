"""The records of the database: producers, and the topics and channels that they have registered.

Producers and registrations refer to each other, so that no query has to search. Only `registration_db` changes them.
"""

from dataclasses import dataclass, field

from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.lookup_commands import PeerInfo

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Keeps consumers from a topic's producer for a while, from the time when it was set."""

    at: float
    """Monotonic seconds."""
    at_ns: int
    """The same in nanoseconds since 1970, for display."""


@dataclass(eq=False, slots=True)
class Producer:
    """One nsqd, which is a connection that has sent IDENTIFY. Two connections of one nsqd are two (nsqlookupd)."""

    id: str
    """The remote address, ``ip:port``."""
    info: PeerInfo
    last_update: float
    """Time of the last command, in monotonic seconds."""
    last_update_ns: int
    """The same in nanoseconds since 1970, for display."""
    topics: "dict[str, Registration]" = field(default_factory=dict)
    channels: "dict[Registration, None]" = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    """By topic. An expired one stays, without effect, as long as the topic is registered."""
    described: bytes = field(init=False)
    """The producer in replies of the HTTP API: a JSON object without its closing brace.

    Encoded once, because queries are far more frequent than changes.
    """

    def __post_init__(self) -> None:
        info = self.info
        members = {
            "remote_address": self.id,
            "hostname": info.hostname,
            "broadcast_address": info.broadcast_address,
            "tcp_port": info.tcp_port,
            "http_port": info.http_port,
            "version": info.version,
            "topology_zone": info.topology_zone,
            "topology_region": info.topology_region,
        }
        self.described = dumps(members).encode("utf-8").removesuffix(b"}")

    @property
    def node(self) -> str:
        """Its name for operators."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


@dataclass(eq=False, slots=True)
class Registration:
    """A topic or channel. It outlives its last producer, until it is deleted (nsqlookupd)."""

    topic: str
    channel: str = ""
    """Empty for the registration of a topic."""
    producers: dict[Producer, None] = field(default_factory=dict)
    active: tuple[Producer, ...] = ()
    """Of a topic: the producers for consumers, valid before `active_until`."""
    active_until: float = _NEVER

    @property
    def category(self) -> str:
        return "channel" if self.channel else "topic"

    def changed(self) -> None:
        """Invalidate `active`."""
        self.active, self.active_until = (), _NEVER
