"""What comes and goes in a topic besides messages, written into its log: channels, pauses, emptying, REQ delays.

Recovery reads it in the order of the messages, so it is written when it happens. If the disk does not take it, the
next checkpoint knows.
"""

import logging
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import ChannelState, entry_id, key_location, pack_key
from nsq_compat.log.group import CHANNEL_CREATED, NOWHERE, REQUEUED
from nsq_compat.log.storage import TopicStore
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import message_id

log = logging.getLogger(__name__)


class ControlLog:
    """Of one topic; without a store nothing is written."""

    def __init__(self, topic_name: str, store: TopicStore | None) -> None:
        self._topic_name = topic_name
        self._store = store
        self._requeued: dict[str, list[bytes]] = {}  # by channel; not written yet

    def note(self, kind: int, name: str, seq: int) -> None:
        """Something came or went, behind the message before number `seq`."""
        if self._store is not None:
            self.write_requeued()
            try:
                self._store.note(kind, name, seq)
            except OSError as error:
                log.error("TOPIC(%s): cannot write to the log - %s", self._topic_name, error)

    def note_creation(self, name: str, seq: int) -> None:
        """A channel came. Raises ``OSError`` if it must not be there without being written down."""
        if self._store is not None and self._store.writes_at_once:
            self.write_requeued()
            self._store.note(CHANNEL_CREATED, name, seq)
        else:
            self.note(CHANNEL_CREATED, name, seq)

    def note_requeued(self, channel: str, message_id: bytes, attempts: int, due: float) -> None:
        """A message of a channel that is in the log was put back until `due`, in monotonic seconds.

        Those of one loop iteration are written together.
        """
        store = self._store
        if store is None or not store.writes_at_once:
            return
        due_ns = int((due + store.clock_offset()) * _NS_PER_SECOND)
        is_first = not self._requeued
        self._requeued.setdefault(channel, []).append(ROW.pack(due_ns, message_id, attempts))
        if is_first:
            store.at_end_of_iteration(self.write_requeued)

    def write_requeued(self) -> None:
        """Write what ``note_requeued`` was told. If the disk does not take it, the next checkpoint knows."""
        if not self._requeued:
            return
        store, requeued = self._store, self._requeued
        self._requeued = {}
        assert store is not None, "without a store there is nothing to write"
        try:
            for channel, rows in requeued.items():
                store.append([encode_requeued(channel, rows)], store.log.end.seq, kind=REQUEUED)
        except OSError as error:
            log.error("TOPIC(%s): cannot write REQ delays to the log - %s", self._topic_name, error)

    def discard_requeued(self) -> None:
        """The topic is gone."""
        self._requeued = {}

    def settle(self) -> None:
        """Return when what was noted is as durable as a message would be. Last of all, because others run meanwhile."""
        if self._store is not None:
            try:
                self._store.commit()
            except OSError as error:
                log.error("TOPIC(%s): cannot sync the log - %s", self._topic_name, error)


ROW: Final = derive(storage_schema.REQUEUED_MESSAGE)
_NS_PER_SECOND: Final = 1_000_000_000


class Delay(NamedTuple):
    """One message's: `due_ns` is wall clock, `attempts` the number of the next delivery."""

    due_ns: int
    message_id: bytes
    attempts: int


def encode_requeued(channel: str, rows: Sequence[bytes]) -> bytes:
    """The frame of a group; `rows` are packed ``ROW``s."""
    raw = channel.encode("ascii")
    return b"".join((struct.pack(">B", len(raw)), raw, *rows))


def decode_requeued(frame: bytes) -> tuple[str, list[Delay]]:
    """The channel and its messages."""
    begin = 1 + frame[0]
    end = begin + (len(frame) - begin) // ROW.size * ROW.size
    return frame[1:begin].decode("ascii"), [Delay(*ROW.unpack_from(frame, at)) for at in range(begin, end, ROW.size)]


class Requeued:
    """By channel, what the replayed part of a log says; the last note of a message counts."""

    def __init__(self) -> None:
        self._channels: dict[str, dict[bytes, Delay]] = {}

    def __bool__(self) -> bool:
        return bool(self._channels)

    @property
    def names(self) -> list[str]:
        """Channels it knows something of."""
        return list(self._channels)

    def add(self, frame: bytes) -> None:
        """Take note of one group."""
        channel, delays = decode_requeued(frame)
        self._channels.setdefault(channel, {}).update((each.message_id, each) for each in delays)

    def forget(self, channel: str) -> None:
        """The channel was emptied or deleted."""
        self._channels.pop(channel, None)

    def earliest_due(self) -> float:
        """In seconds since 1970."""
        return min(delay.due_ns for each in self._channels.values() for delay in each.values()) / _NS_PER_SECOND

    def apply(self, places: dict[str, ChannelState], clock_offset: float, log: TopicLog) -> None:
        """Defer them in these places. Raises ``OSError``."""
        for name, delays in self._channels.items():
            if name in places:
                _apply(places[name], delays, clock_offset, log)


def _apply(place: ChannelState, delays: dict[bytes, Delay], clock_offset: float, log: TopicLog) -> None:
    """A message is among the place's entries, or in the stream ahead of it: there it is to be passed over.

    What is in neither was finished before, or is damaged and counted elsewhere.
    """
    rest = dict(delays)
    for index, key in enumerate(place.entries):
        delay = rest.pop(entry_id(key), None)
        if delay is not None:
            place.entries[index] = _entry(delay, index, clock_offset, key_location(key))
    found = list(_find_in_stream(log, place, rest))
    for _, number in found:
        place.entries.append(_entry(rest[number], len(place.entries), clock_offset))
    _pass_over(place, [seq for seq, _ in found])


def _entry(delay: Delay, serial: int, clock_offset: float, location: bytes = NOWHERE) -> bytes:
    due = delay.due_ns / _NS_PER_SECOND - clock_offset
    return pack_key(max(0.0, due), serial, delay.message_id, delay.attempts, location)


def _find_in_stream(log: TopicLog, place: ChannelState, wanted: dict[bytes, Delay]) -> Iterator[tuple[int, bytes]]:
    """Numbers and ids, from the place's position on; ids grow with the numbers, so the search ends behind the last."""
    missing = set(wanted)
    if not missing:
        return
    last = max(missing)
    reader = log.reader(place.position)
    while missing and (groups := reader.read()):
        for group in groups:
            for seq, frame in enumerate(group.frames, group.first_seq):
                number = message_id(frame)
                if number in missing:
                    missing.remove(number)
                    yield seq, number
        if message_id(groups[-1].frames[-1]) > last:
            return


def _pass_over(place: ChannelState, numbers: Sequence[int]) -> None:
    """Messages of these numbers are not to be read in the stream."""
    ranges = sorted([*place.gaps, *((seq, seq + 1) for seq in numbers)])
    place.gaps = []
    for begin, end in ranges:
        if begin <= place.position:
            place.position = max(place.position, end)
        elif place.gaps and begin <= place.gaps[-1][1]:
            place.gaps[-1] = (place.gaps[-1][0], max(end, place.gaps[-1][1]))
        else:
            place.gaps.append((begin, end))
