"""Mirroring, as /stats of a node describes it: the standby of a primary, and the copies that a standby has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsq_compat.cluster import reading
from nsq_compat.cluster.nodes import join_host_port
from nsq_compat.cluster.reading import InvalidAnswer

IN_SYNC = "in sync"
CATCHING_UP = "catching up"
_MAX_PRIMARIES = 100
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """The standby of a node, as the node sees it."""

    address: str = ""
    """That of its TCP port."""
    state: str = ""
    since: int = 0
    """When the state began, Unix seconds."""
    seconds: float = 0.0
    """The age of the state."""
    behind: int = 0
    """Changes of files that the standby has not acknowledged."""
    failure: str = ""
    when_lost: str = ""

    @property
    def is_in_sync(self) -> bool:
        return self.state == IN_SYNC

    @property
    def is_catching_up(self) -> bool:
        return self.state == CATCHING_UP

    @property
    def refuses(self) -> bool:
        """Whether the node refuses messages now."""
        return self.when_lost == "refuse" and not self.is_in_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """A node of which another one, the standby, has a copy, or has taken over the topics."""

    identity: str = ""
    address: str = ""
    """That of its TCP port."""
    broadcast_address: str = ""
    http_port: int = 0
    connected: bool = False
    complete: bool = False
    """The copy was in sync, and has followed every change since."""
    last_seen: int = 0
    """When it was connected, or sent something, last, Unix seconds."""
    taken_over: tuple[str, ...] | None = None
    """Topics; None if they were not taken over."""

    @property
    def http_address(self) -> str:
        return join_host_port(self.broadcast_address, self.http_port)

    @property
    def can_be_adopted(self) -> bool:
        return not self.connected and self.taken_over is None


@dataclass(frozen=True, slots=True)
class Mirroring:
    """`standby` is None for a node without one."""

    standby: Standby | None = None
    primaries: tuple[Primary, ...] = ()
    accepts: bool = False
    """Whether the node may be a standby."""

    @property
    def is_used(self) -> bool:
        return self.standby is not None or self.accepts

    @property
    def needs_attention(self) -> bool:
        """Whether messages of this node, or of a primary, are on one machine only."""
        lost = self.standby is not None and not self.standby.is_in_sync
        return lost or any(primary.can_be_adopted for primary in self.primaries)


def read_mirroring(value: object) -> Mirroring:
    """Raises `reading.InvalidAnswer`."""
    answer = reading.mapping(value)
    standby = answer.get("standby")
    primaries = reading.array(reading.mapping, answer.get("primaries"))[:_MAX_PRIMARIES]
    return Mirroring(
        _read_standby(reading.mapping(standby)) if standby is not None else None,
        tuple(map(_read_primary, primaries)),
        reading.boolean(answer.get("accepts")),
    )


def _read_standby(answer: Mapping[str, Any]) -> Standby:
    since, seconds = _moment(answer.get("since")), reading.number(answer.get("seconds"))
    return reading.record(Standby, answer, since=since, seconds=seconds)


def _read_primary(answer: Mapping[str, Any]) -> Primary:
    topics = answer.get("taken_over")
    taken_over = None if topics is None else tuple(reading.array(reading.text, topics))
    return reading.record(Primary, answer, taken_over=taken_over, last_seen=_moment(answer.get("last_seen")))


def _moment(value: object) -> int:
    """Unix seconds of a date that can be shown."""
    seconds = reading.integer(value)
    if not 0 <= seconds <= _LAST_SECOND:
        raise InvalidAnswer("invalid answer: not a time")
    return seconds
