"""What the database is made of: producers, and the topics and channels they have registered.

Each knows the others it belongs to, so that no question makes anybody search. Only `registration_db` changes them.
"""

from dataclasses import dataclass, field

from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.lookup_commands import PeerInfo

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Consumers are kept away from a topic's producer for a while, counted from here."""

    at: float
    """Monotonic seconds."""
    at_ns: int
    """Nanoseconds since 1970, to be shown."""


@dataclass(eq=False, slots=True)
class Producer:
    """One nsqd: a connection, from its IDENTIFY to its end. Two connections of one nsqd are two (nsqlookupd)."""

    id: str
    """The address it came from, ``ip:port``."""
    info: PeerInfo
    last_update: float
    """When it was last heard of, in monotonic seconds."""
    last_update_ns: int
    """The same in nanoseconds since 1970, to be shown."""
    topics: "dict[str, Registration]" = field(default_factory=dict)
    channels: "dict[Registration, None]" = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    """By topic. One whose time is over stays, without effect, as long as the topic is registered."""
    described: bytes = field(init=False)
    """What consumers and operators are told of it: a JSON object without its closing brace.

    Written once, because a directory is asked far more often than it changes.
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
        """How an operator names it."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


@dataclass(eq=False, slots=True)
class Registration:
    """A topic, or a channel of one. It outlives its last producer, until it is deleted (nsqlookupd)."""

    topic: str
    channel: str = ""
    """Empty for the registration of a topic."""
    producers: dict[Producer, None] = field(default_factory=dict)
    active: tuple[Producer, ...] = ()
    """Of a topic: whom consumers are sent to; true before `active_until`."""
    active_until: float = _NEVER

    @property
    def category(self) -> str:
        return "channel" if self.channel else "topic"

    def changed(self) -> None:
        """Who is active has to be found out again."""
        self.active, self.active_until = (), _NEVER
