"""A topic: turns bodies into messages, writes them to its log, and gives the same frames to each of its channels.

The topic itself *holds* messages while it has no channel, is paused, or is new and waits for nsqlookupd to name the
channels that exist elsewhere. The first channel gets all held messages; a later one only those published after it.

Invariants:

- Messages are numbered in the order of publishing. Cursors and the log use these numbers.
- A message is in the log before a channel gets it or a producer gets OK. So a failed write changes nothing.
"""

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from nsq_compat.log.checkpoint import ChannelState, Replay, TopicState, entry_id
from nsq_compat.log.control_log import ControlLog, Move
from nsq_compat.log.data_path import NotMirrored
from nsq_compat.log.offsets import Retention, id_at, number_at, offset_of_number, offsets_of, segment_of
from nsq_compat.log.storage import TopicStore
from nsq_compat.log.topic_log import LogEnd, TopicLog
from nsq_compat.protocol import storage_schema as records
from nsq_compat.protocol.headers import ID
from nsq_compat.protocol.message import (
    HEADER_SIZE,
    FrameFactory,
    attempts,
    body,
    has_headers,
    message_id,
    payload_again,
    publish_id,
)
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.backlog import Backlog, Cursor
from nsq_compat.queue.channel import Channel, Hooks
from nsq_compat.queue.deferred import Deferred, SharedReads
from nsq_compat.queue.publish_ids import Part, PublishIds
from nsq_compat.queue.replay import ReplayingCursor
from nsq_compat.queue.schedule import AT_ONCE, NEVER, Schedule
from nsq_compat.queue.turns import Turns
from nsq_compat.queue.values import Exiting, NotLogged, QueueLimits, refuse_all

log = logging.getLogger(__name__)

MAX_RECENT: Final = 100
MAX_RECENT_BYTES: Final = 4 << 20
_MAX_SEARCHED: Final = 20_000
"""Messages in memory that are looked at for the last published ones. All channels have the same, unless some are done
with them, and those that are not in the log, too, are few. The 100 messages of 10,000 channels take half a second."""
_MAX_FLIGHTS: Final = 256
"""Consumers of a channel, in that search."""
WATCHED_SECONDS: Final = 60.0
"""Time for which recent messages are kept after the last request for them."""
_NS_PER_SECOND: Final = 1_000_000_000


class Published(NamedTuple):
    """`due_ns` is when a deferred message may be delivered, wall clock; 0 for at once."""

    frame: bytes
    due_ns: int


class ChannelObserver(Protocol):
    """Is notified after a channel was added to, or removed from, its topic."""

    def channel_created(self, topic: "Topic", channel: Channel) -> None: ...

    def channel_deleted(self, topic: "Topic", channel: Channel) -> None: ...


class TopicObserver(ChannelObserver, Protocol):
    def changed(self, topic: "Topic") -> None:
        """The checkpoint is out of date; called once until the next one."""


def _system_clock_offset() -> float:
    return time.time() - time.monotonic()


class Topic:
    """Created by a broker. `exiting` once it is deleted or nsqd stops. Without a store it is in memory only."""

    def __init__(
        self,
        name: str,
        limits: QueueLimits,
        schedule: Schedule,
        observer: TopicObserver,
        store: TopicStore | None = None,
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.awaits_channels = False
        self.exiting = False
        self.has_headers = False
        """Messages may have headers. Consumers that did not ask for headers get them without these."""
        self.admission: Callable[[int, float], None] | None = None
        """Called before each publish with the number of messages and `now`; may raise ``Refused``. NSQ has none."""
        self.publish_ids: PublishIds | None = None
        """The publish ids of the last messages, by which repeated publishes are recognized. NSQ has none."""
        self._ids_are_noted = False
        """The log says that messages have ids which have no effect."""
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0
        self.rejected_count = 0
        self.limits = limits
        self.store = store
        self.frames = FrameFactory(limits.node_id)
        self.seq = 0
        """The number of the next message."""
        self.large_batches: Turns[object] = Turns()
        """The publishes in steps that have begun, see ``publish_batch.LargeBatch``."""
        self.alarm = NEVER
        self._schedule = schedule
        self._observer = observer
        self._control_log = ControlLog(name, store)
        self._changed = False
        self._saved_end: LogEnd | None = None
        self._recent: _RecentMessages | None = None
        self._first_held = 0
        """The offset of the next message when the topic began to hold messages."""
        self._reads = None if store is None else SharedReads(store.log.fetch, schedule, self.channels)
        self.backlog = self._new_backlog(self.seq)
        if store is not None:
            store.serve(limits.mem_queue_size, self._first_needed)

    @property
    def depth(self) -> int:
        """The number of messages that the topic holds."""
        return len(self.backlog) + len(self.backlog.deferred)

    @property
    def full_name(self) -> str:
        """The name in log lines and errors: ``topic orders``."""
        return f"topic {self.name}"

    def recent(self, count: int, now: float, now_ns: int) -> Sequence[Published]:
        """Return the last published messages, finished or not, oldest first. May raise ``OSError``.

        The first call finds those that the log and memory still have. Frequent calls miss none.
        """
        if self._recent is None:
            recent = _RecentMessages()
            latest = self.backlog.latest(MAX_RECENT, ())
            for channel in self.channels.values():
                latest += channel.backlog.latest(MAX_RECENT, islice(channel.in_flight_sets(), _MAX_FLIGHTS))
                if len(latest) >= _MAX_SEARCHED:
                    break
            recent.begin(self.store.log if self.store is not None else None, latest, now, now_ns)
            self._recent = recent
        self._recent.until = now + WATCHED_SECONDS
        self._schedule.at(self._recent.until, self)
        return list(self._recent.kept)[-count:]

    def on_alarm(self, now: float) -> float:
        if self._recent is not None and now < self._recent.until:
            return self._recent.until
        self._recent = None
        return NEVER

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def publish(self, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> None:
        """Publish messages, all or none, to be delivered after `defer` seconds. Raises ``Refused`` and ``OSError``."""
        self.add(bodies, now, now_ns, defer)
        self.commit()

    def publish_with_headers(self, payloads: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> int:
        """As ``publish``, for messages with headers (``protocol.headers``). Raises ``HeaderError``, too.

        Returns how many were published: those of known ids are not.
        """
        ids = self.publish_ids
        if ids is not None:
            return self._publish_once(ids, payloads, now, now_ns, defer)
        self.add_with_headers(payloads, now, now_ns, defer)
        self.commit()
        return len(payloads)

    def republish(self, frames: Sequence[bytes], now: float, now_ns: int) -> None:
        """Publish messages of another topic again, with their headers; raises as ``publish`` does."""
        if any(map(has_headers, frames)):
            self.publish_with_headers(list(map(payload_again, frames)), now, now_ns)
        else:
            self.publish(list(map(body, frames)), now, now_ns)

    def commit(self) -> None:
        """Wait until published messages are as durable as an OK says. Raises ``OSError`` if they may not be."""
        if self.store is not None and self.store.commits:
            self.store.commit()

    def add(self, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> None:
        """Publish messages as `publish` does; the caller has to commit before it says OK."""
        if self.admission is not None:
            self.admission(len(bodies), now)
        frames, joined, size = self.frames.make(bodies, now_ns)
        if defer > 0:
            self._defer(frames, now + defer, now_ns + int(defer * _NS_PER_SECOND))
        else:
            self._deliver(frames, joined)
        self.message_count += len(bodies)
        self.message_bytes += size
        if self._recent is not None:
            self._recent.note(frames, now_ns + int(defer * _NS_PER_SECOND) if defer > 0 else 0)

    def add_with_headers(self, payloads: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> None:
        """As ``add``, for messages with headers (``protocol.headers``). Raises ``HeaderError``, too."""
        if self.admission is not None:
            self.admission(len(payloads), now)
        self._add_frames(self.frames.make_with_headers(payloads, now_ns), now, now_ns, defer)

    def _add_frames(self, frames: Sequence[bytes], now: float, now_ns: int, defer: float) -> None:
        self.note_headers(frames)
        if defer > 0:
            self._defer(frames, now + defer, now_ns + int(defer * _NS_PER_SECOND))
        else:
            self._deliver(frames, b"")
        self.message_count += len(frames)
        self.message_bytes += sum(map(len, frames)) - HEADER_SIZE * len(frames)
        if self._recent is not None:
            self._recent.note(frames, now_ns + int(defer * _NS_PER_SECOND) if defer > 0 else 0)

    def _publish_once(self, ids: PublishIds, payloads: Sequence[bytes], now: float, now_ns: int, defer: float) -> int:
        """As ``publish_with_headers``, but for messages of which the ids are known."""
        frames, digests = ids.fresh(self.frames.make_with_headers(payloads, now_ns), now_ns)
        if frames:
            if self.admission is not None:
                self.admission(len(frames), now)
            self._add_frames(frames, now, now_ns, defer)
            self.note_ids(digests, now, now_ns)
        self.commit_ids(ids, digests, has_known=len(frames) < len(payloads))
        return len(frames)

    def commit_ids(
        self, ids: PublishIds, digests: Sequence[bytes], part: Part | None = None, *, has_known: bool
    ) -> None:
        """As ``commit``, after a publish of messages with these ids, or those of the part. Raises ``OSError``.

        They may then be published again. `has_known`: there were others, which may still wait for their own commit.
        """
        failures = ids.failed_commits
        try:
            self.commit()
        except NotMirrored:  # the next attempt waits for the standby again
            raise
        except OSError:
            ids.commit_failed(digests, part)
            raise
        if has_known and ids.failed_commits != failures:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def settle_ids(self, part: Part, duplicate_count: int, now: float) -> None:
        """Know the ids of a publish in steps, of which the messages are in the log."""
        if self.publish_ids is not None:
            self.publish_ids.settle(part, duplicate_count)
            self._schedule.at(self.publish_ids.next_alarm(now), self.publish_ids)

    def drop_ids(self, ids: PublishIds, part: Part) -> None:
        """Forget the ids of a publish in steps, of which the messages were not published."""
        ids.drop(part)
        if ids is self.publish_ids:
            self._schedule.at(AT_ONCE, ids)

    def note_ids(self, digests: Sequence[bytes], now: float, time_ns: int) -> None:
        """Know the ids of messages that are in the log."""
        if self.publish_ids is not None:
            self.publish_ids.note(digests, time_ns)
            self._schedule.at(self.publish_ids.next_alarm(now), self.publish_ids)

    def forget_ids(self) -> None:
        """Recognize no repeated publishes any more."""
        if self.publish_ids is not None:
            self._schedule.cancel(self.publish_ids)
            self.publish_ids = None
            self._ids_are_noted = False

    def note_headers(self, frames: Sequence[bytes]) -> None:
        """Note if one of these has headers, before it is written. Raises ``OSError``, having noted nothing."""
        if self.publish_ids is None and not self._ids_are_noted and any(map(publish_id, frames)):
            self._ids_are_noted = True
            log.warning(
                "TOPIC(%s): messages have the header %s, but no policy sets dedup_window for the topic, so repeated "
                "publishes are not recognized (docs/headers.md, Publish a message once)", self.name, ID,
            )  # fmt: skip
        if not self.has_headers and any(map(has_headers, frames)):
            self._note_headers()

    def _note_headers(self) -> None:
        self._control_log.note_headers(self.seq)
        self._begin_headers()
        self._note_change()

    def _begin_headers(self) -> None:
        self.has_headers = True
        for channel in self.channels.values():
            channel.begin_headers()

    def publish_prepared(
        self, count: int, size: int, first: Sequence[Sequence[bytes]], last: Sequence[bytes], *, is_logged: bool
    ) -> None:
        """Publish `count` messages with bodies of `size` bytes in all.

        `first` has the frames that memory may hold, or all if there is a log and they are not in it. `last` are the
        last ones. The caller has to commit before it says OK.
        """
        if self.store is not None and not is_logged:
            self._deliver([frame for frames in first for frame in frames], b"")
        else:
            self.seq += count
            if self.is_holding:
                self._drop(self.backlog.cursor.extend_by(count, first))
            else:
                for channel in self.channels.values():
                    channel.put_batch(count, first)
        self.message_count += count
        self.message_bytes += size
        if self._recent is not None:
            self._recent.note(last, 0)

    def _deliver(self, frames: Sequence[bytes], joined: bytes) -> None:
        # Hot: runs for every publish.
        store = self.store
        if store is not None:
            store.append(frames, self.seq, joined=joined)
        self.seq += len(frames)
        if self.is_holding:
            self._drop(self.backlog.cursor.extend(frames))
        else:
            for channel in self.channels.values():
                channel.put(frames)

    def _defer(self, frames: Sequence[bytes], due: float, due_ns: int) -> None:
        locations: Sequence[bytes] = ()
        if self.store is not None:
            backlogs = [self.backlog] if self.is_holding else [channel.backlog for channel in self.channels.values()]
            count, size = len(frames), sum(map(len, frames))
            room = min([backlog.deferred.room_after(count, size) for backlog in backlogs], default=1 << 62)
            locations = self.store.append_deferred(frames, self.seq, due_ns, room)
        if self.is_holding:
            self._drop(self.backlog.deferred.add_new(frames, due, locations))
        else:
            for channel in self.channels.values():
                channel.defer(frames, due, locations)
        self._note_change()

    # --- Channels -----------------------------------------------------------------------------------------------------

    def channel(self, name: str, *, waits: bool = True) -> Channel:
        """Return the channel of that (valid) name; create it if it is missing. Raises ``Exiting`` and ``OSError``.

        Unless it `waits`, the standby has the channel later.
        """
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise Exiting
            was_holding = self.is_holding
            position = self.backlog.cursor.position if was_holding else self.seq
            if self.store is not None and not is_ephemeral(name):
                self._control_log.note_creation(name, position)
            channel = self._make_channel(name, position)
            log.info("TOPIC(%s): new channel(%s)", self.name, name)
            if was_holding:
                self._hand_over()
            self._note_ephemeral()
            self._note_change()
            self._observer.channel_created(self, channel)
            if self.store is not None and waits:
                self.store.commit()  # last, because it may block while other greenlets run
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with its messages. Raises ``KeyError``."""
        self._delete(self.channels[name])
        self._control_log.commit()

    def _make_channel(self, name: str, position: int) -> Channel:
        store = None if is_ephemeral(name) else self.store
        channel = Channel(
            self.name,
            name,
            self._schedule,
            backlog=self._new_backlog(position, logged=store is not None),
            on_change=self._note_change,
            hooks=Hooks(
                self.limits,
                self._delete,
                _system_clock_offset if self.store is None else self.store.clock_offset,
                None if store is None else self._control_log.note_requeued,
            ),
        )
        if self.has_headers:
            channel.begin_headers()
        self.channels[name] = channel
        return channel

    def _delete(self, channel: Channel) -> None:
        log.info("TOPIC(%s): deleting channel %s", self.name, channel.name)
        del self.channels[channel.name]
        channel.delete()
        if not self.channels and not (self.paused or self.awaits_channels):
            self._begin_holding()
        if not channel.ephemeral or self.is_holding:
            self._note(records.CHANNEL_DELETED, channel.name)
        self._note_ephemeral()
        self._note_change()
        self._observer.channel_deleted(self, channel)

    # --- Mirrors ------------------------------------------------------------------------------------------------------

    def take_in(self, channels: Iterable[str], messages: Sequence[tuple[int, bytes]], now: float, now_ns: int) -> None:
        """Deliver unfinished messages of another nsqd to some channels, or hold them if there is none.

        Each has its due time, in nanoseconds since 1970 or 0, and carries the attempts of its next delivery. Ids stay.
        Raises ``OSError``.
        """
        assert self.store is not None, "only topics with a log are mirrored"
        frames = [frame for _, frame in messages]
        self.note_headers(frames)
        self.store.keep(frames)
        entries = [
            (
                max(0.0, now + (due_ns - now_ns) / _NS_PER_SECOND) if due_ns > now_ns else 0.0,
                message_id(frame),
                attempts(frame),
            )
            for due_ns, frame in messages
        ]
        receivers = [self.channels[name] for name in channels if name in self.channels]
        for channel in receivers:
            channel.take_in(entries)
        if not receivers:
            self.backlog.take_in(entries)
        self._note_change()

    def recall_ids(self, now_ns: int) -> int:
        """Read the publish ids from the log, before the topic is used; returns how many. Raises ``OSError``."""
        if self.publish_ids is None or self.store is None or not self.has_headers:
            return 0
        count = self.publish_ids.recall(self.store.log, now_ns)
        self._schedule.at(AT_ONCE, self.publish_ids)
        return count

    def take_ids(self, ids: PublishIds, now: float) -> None:
        """Know the publish ids of another nsqd, of which the log is that of this topic now."""
        if self.publish_ids is not None:
            ids.set_window(self.publish_ids.window)
            self.publish_ids = ids
            self._schedule.at(ids.next_alarm(now), ids)

    def add_ids(self, digests: Sequence[bytes], time_ns: int, now: float) -> None:
        """Know further publish ids of another nsqd, also after a restart. Raises ``OSError``."""
        if not self.has_headers:
            self._note_headers()
        self._control_log.note_ids(digests, time_ns, self.seq)
        self.note_ids(digests, now, time_ns)

    def forget_before(self, offset: int, last_id: bytes, now_ns: int, empty_until: int = 0) -> bool:
        """Another nsqd delivers the messages before this offset from now on. Does not wait for a standby.

        `last_id` is the id of the last of them. If another message is there, the topic was deleted and created again,
        and nothing is forgotten; returns whether it was. There is no message from `offset` to `empty_until`. Raises
        ``OSError``.
        """
        if self.store is None:
            return False
        with self.store.log.at_once():
            if id_at(self.store.log, offset - 1) != last_id:
                return False
            offset = max(offset, empty_until)
            for name, channel in list(self.channels.items()):
                if not channel.ephemeral and self.offset_of_channel(name) <= offset:
                    self._move(channel, offset, self._held_from(), now_ns, (0, 0), drops_taken=True)
            if self.is_holding:
                self.backlog.cursor.pass_over(number_at(self.store.log, offset, self.seq))
                self._note_change()
        self.store.sync()
        return True

    # --- Places in the log --------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self.seq + (0 if self.store is None else self.store.log.deferred_count)

    def move_channel(self, name: str, offset: int, now_ns: int, *, drops_taken: bool = False) -> None:
        """Move a channel to the message with this offset, back or forward, and deliver from there.

        What the channel has in flight, returned or deferred stays, or is dropped. Raises ``KeyError``, ``NotLogged``,
        and ``OSError``, having done nothing.
        """
        channel = self.channels[name]
        earlier = channel.backlog.cursor.replay()
        again = (0, 0) if earlier is None else (max(offset, earlier.again_from), earlier.again_to)
        self._move(channel, offset, self._held_from(), now_ns, again, drops_taken=drops_taken)
        self._control_log.commit()

    def depth_if_moved(self, name: str, offset: int, *, drops_taken: bool = False) -> int:
        """The depth that ``move_channel`` would give to a channel. Raises as it does, and changes nothing."""
        channel = self.channels[name]
        cursor = channel.backlog.cursor
        end, skipped = self._places_of_move(channel, offset, self._held_from(), drops_taken=drops_taken)
        position = max(cursor.position, skipped[1]) if drops_taken or offset >= end else cursor.position
        gaps = sum(stop - max(begin, position) for begin, stop in cursor.gaps if stop > position)
        taken = 0 if drops_taken else channel.depth - len(cursor)
        return taken + max(0, end - offset) + cursor.end - position - gaps

    def offset_of_channel(self, name: str) -> int:
        """The offset of the message that a channel takes next. Raises ``KeyError``, ``NotLogged``, and ``OSError``."""
        cursor = self.channels[name].backlog.cursor
        replay = cursor.replay()
        if self.store is None or is_ephemeral(name):
            raise NotLogged
        if replay is not None:
            return replay.ranges[0][0]
        return offset_of_number(self.store.log, cursor.position, self.next_offset)

    def create_channel_at(
        self, name: str, offset: int, now_ns: int, check: Callable[[], None] = lambda: None
    ) -> Channel:
        """Create a channel that begins with the message that has this offset.

        `check` is called right before it is created, and may raise an exception to prevent that. Raises ``NotLogged``,
        ``Exiting``, and ``OSError``; then it may have been created at the end.
        """
        if self.store is None or is_ephemeral(name):
            raise NotLogged
        log, held_from = self.store.log, self._held_from()
        # Before the channel is created, because both may need several calls, and the topic no longer holds then.
        offset_of_number(log, self.backlog.cursor.position if self.is_holding else self.seq, self.next_offset)
        number = number_at(log, offset, self.seq)
        check()
        channel = self.channel(name)
        self._move(channel, offset, held_from, now_ns, (offset, held_from), number=number)
        self._control_log.commit()
        return channel

    def _move(
        self,
        channel: Channel,
        offset: int,
        limit: int,
        now_ns: int,
        again: tuple[int, int],
        *,
        drops_taken: bool = False,
        number: int = -1,
    ) -> None:
        """Move a channel. What has the offset `limit` or a later one, it has in the stream or will get.

        `number` is that of the offset (``number_at``) if it is known.
        """
        before = channel.backlog.cursor
        end, skipped = self._places_of_move(channel, offset, limit, drops_taken=drops_taken, number=number)
        if drops_taken:
            again = (offset, limit)
        earlier = before.replay()
        reached = earlier.ranges[0][0] if earlier is not None else 0
        replay = Replay(((offset, end),) if offset < end else (), now_ns, *again)
        self._control_log.note_move(Move(channel.name, reached, *skipped, drops_taken, replay), self.seq)
        dropped = channel.drop_taken() if drops_taken else 0
        log.info(
            "CHANNEL(%s): moved to offset %d, %d messages dropped that it had taken", channel.name, offset, dropped
        )
        if drops_taken or offset >= end:
            position = max(before.position, skipped[1])
            gaps = [(max(begin, position), stop) for begin, stop in before.gaps if stop > position]
            before.move(position, before.end, gaps)
            channel.move(before)
        if offset < end:
            self._replay(channel, replay)
        self._note_change()

    def _places_of_move(
        self, channel: Channel, offset: int, limit: int, *, drops_taken: bool, number: int = -1
    ) -> tuple[int, tuple[int, int]]:
        """The offset up to which messages come again, and the range of numbers that is passed over in the stream."""
        store, cursor = self.store, channel.backlog.cursor
        if store is None or channel.ephemeral:
            raise NotLogged
        if drops_taken:  # the stream too, so that deferred messages come which are in it no more
            return limit, (0, cursor.end)
        end = min(offset_of_number(store.log, cursor.position, self.next_offset), limit)
        seq = min(number if number >= 0 else number_at(store.log, offset, self.seq), cursor.end)
        return end, (seq, cursor.position) if offset < end else (cursor.position, seq)

    def _replay(self, channel: Channel, replay: Replay) -> None:
        store = self.store
        assert store is not None, "a replay is read from the log"

        def defer(frames: Sequence[bytes], due_ns: int) -> None:
            channel.defer_again(frames, due_ns / _NS_PER_SECOND - store.clock_offset())

        channel.move(ReplayingCursor(store.log, channel.backlog.cursor, replay, defer, channel.without_in_flight))

    def _first_offset_of(self, held: ChannelState) -> int:
        """The offset of the first of the messages that the topic holds. Raises ``OSError``."""
        assert self.store is not None, "a state was read from a store"
        with self.store.log.at_once():
            first = offset_of_number(self.store.log, held.position, self.next_offset)
            if held.prepared is not None:
                first_id = held.prepared.first_id
            elif held.entries:
                first_id = min(map(entry_id, held.entries))
            else:
                return first
            return min([first, *offsets_of(self.store.log, [first_id]).values()])

    def _held_from(self) -> int:
        """The offset of the first message that the topic holds, or the next one."""
        return self._first_held if self.is_holding else self.next_offset

    # --- Control ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold published messages. The channels still deliver those they have."""
        if not self.paused:
            if not self.is_holding:
                self._begin_holding()
            self.paused = True
            self._note(records.TOPIC_PAUSED)
            self._control_log.commit()

    def unpause(self) -> None:
        """Give the held messages to the channels."""
        if self.paused:
            self.paused = False
            self._end_holding(records.TOPIC_UNPAUSED)

    def await_channels(self) -> None:
        """Hold published messages until `learn_channels`."""
        if not self.awaits_channels:
            if not self.is_holding:
                self._begin_holding()
            self.awaits_channels = True
            self._note(records.TOPIC_AWAITS_CHANNELS)

    def learn_channels(self, names: Iterable[str] = ()) -> None:
        """Create these channels, and give the held messages to all channels.

        nsqd: not the ephemeral ones, which have no consumer here. Raises ``Exiting``; call again after ``OSError``.
        """
        if self.exiting:
            raise Exiting
        for name in names:
            if not is_ephemeral(name):
                self.channel(name)
        if self.awaits_channels:
            self.awaits_channels = False
            self._end_holding(records.TOPIC_KNOWS_CHANNELS)

    def empty(self) -> None:
        """Drop the held messages, and what is retained. nsqd: the channels keep theirs."""
        self.backlog.empty()
        if self.store is not None:
            self.store.log.emptied_at = self.next_offset
        self._pass_over()
        self._note(records.TOPIC_EMPTIED)
        self._control_log.commit()

    def empty_channel(self, name: str) -> None:
        """Drop all messages of a channel, also those deferred and in flight. Raises ``KeyError``."""
        self.channels[name].empty()
        self._note(records.CHANNEL_EMPTIED, name)
        self._control_log.commit()

    def close(self) -> None:
        """Refuse publishes and close the channels, before nsqd stops. Messages stay."""
        self.exiting = True
        self.admission = refuse_all
        for channel in self.channels.values():
            channel.close()

    def flush(self) -> None:
        """Write all messages that are in no file yet, before nsqd stops. Raises ``OSError``."""
        if self.store is not None:
            lasting = [channel for channel in self.channels.values() if not channel.ephemeral]
            self.store.flush(lambda: chain(self.backlog.frames(), *(channel.frames() for channel in lasting)))

    def delete(self) -> None:
        """Delete the channels, the messages, and the folder."""
        self.exiting = True
        self.admission = refuse_all
        for channel in self.channels.values():
            channel.delete()
        self._schedule.cancel(self)  # which would keep the recent messages for a minute
        self._recent = None
        self.forget_ids()
        self._control_log.discard_requeued()
        if self.store is not None:
            self.store.delete()

    # --- Limits of a policy -------------------------------------------------------------------------------------------

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Drop the oldest held messages, and count them as dropped; returns how many. Raises ``OSError``."""
        count = self.backlog.drop_oldest(limit, max_bytes)
        self.dropped_count += count
        self._pass_over()
        self._note_change()
        return count

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self, now: float, now_ns: int) -> TopicState:
        """Return the state of the topic and its channels. The observer is notified of changes from now on."""
        assert self.store is not None, "a topic without a store has no checkpoint"
        self._changed = False
        self._control_log.write_requeued()  # before the end of the log is taken, so that they are not replayed
        log_end = self.store.log.begin_checkpoint()._replace(seq=self.seq)
        state = TopicState(log_end, now_ns / _NS_PER_SECOND - now, self.frames.ids.last)
        state.channels = {name: each.state() for name, each in self.channels.items() if not each.ephemeral}
        state.held = self.backlog.state() if self.is_holding else None
        state.paused, state.awaits_channels = self.paused, self.awaits_channels
        state.emptied_at, state.has_headers = self.store.log.emptied_at, self.has_headers
        self.store.note_missing(state)
        return state

    def checkpoint_saved(self, saved: TopicState) -> None:
        """Note that this checkpoint is on the disk."""
        self._saved_end = saved.end

    @property
    def is_checkpoint_current(self) -> bool:
        """Whether a new checkpoint would be equal to that on the disk, and no message is in memory only."""
        return (
            not self._changed
            and self.store is not None
            and self.store.is_saved(self._saved_end)
            and not any(channel.in_flight_count for channel in self.channels.values())
        )

    def release(self, saved: TopicState, now_ns: int, pause: Callable[[], None] = lambda: None) -> None:
        """Delete files that are not needed any more, once this checkpoint is saved; calls `pause` from time to time."""
        assert self.store is not None, "a topic without a store has no checkpoint"
        if not self.exiting:
            replays = [each.replay for each in saved.backlogs if each.replay is not None]
            self.store.release(saved, pause, partial(self._kept_from, replays, now_ns))

    def is_release_due(self, now_ns: int) -> bool:
        """Whether the log has a segment that the topic's policy retains no longer."""
        if self.store is None or self.store.retention is None:
            return False
        segments = self.store.log.segments
        if len(segments) < 2 or segments[1].first_seq > self._first_needed():
            return False  # a channel still needs it
        try:
            return segments[0].number < self._kept_from([], now_ns)
        except OSError:
            return False

    def retain(self, retention: Retention | None) -> None:
        """Keep what the channels have finished, as long as this says. Errors are logged."""
        if self.store is None or self.store.retention == retention:
            return
        try:
            self.store.retain(retention)
        except OSError as error:
            log.error("TOPIC(%s): cannot retain messages - %s", self.name, error)
        self._note_change()

    def _kept_from(self, saved: Sequence[Replay], now_ns: int) -> int:
        """The number of the first segment that the policy retains, or a channel replays. Raises ``OSError``."""
        assert self.store is not None, "a topic without a store has no checkpoint"
        own = [channel.backlog.cursor.replay() for channel in self.channels.values()]
        begins = [replay.ranges[0][0] for replay in [*saved, *own] if replay is not None and replay.ranges]
        log_ = self.store.log
        return min([self.store.retained_from(now_ns), *(segment_of(log_, each) for each in begins)])

    def restore(self, before: TopicState, channels: Iterable[str], now: float, now_ns: int) -> None:
        """Restore a state. Further `channels` begin at the end, or get all messages if the state was lost."""
        assert self.store is not None, "a state was read from a store"
        shift = before.clock_offset - (now_ns / _NS_PER_SECOND - now)
        log_end = self.store.log.end
        self.seq = before.end.seq
        self.frames.ids.start_after(before.last_id)
        self.paused = before.paused
        self.awaits_channels = before.awaits_channels
        self.has_headers = before.has_headers
        held = before.held
        stands = self.seq if held is None else held.position
        for name, state in before.channels.items():
            channel = self._make_channel(name, 0)
            channel.restore(state, stands, shift)
            if state.replay is not None:
                self._replay(channel, state.replay)
        if not self.store.log.segments:  # the messages before are in other files
            for name in self.channels:
                self._note(records.CHANNEL_CREATED, name, stands)
            if self.paused:
                self._note(records.TOPIC_PAUSED, "", stands)
            if self.has_headers:
                self._note(records.TOPIC_HAS_HEADERS, "", stands)
            if self.awaits_channels:
                self._note(records.TOPIC_AWAITS_CHANNELS, "", stands)
        begin = ChannelState(stands) if held is not None or before.everything is None else before.everything
        for name in channels:
            if name not in self.channels and name not in before.gone and not is_ephemeral(name):
                own = ChannelState(begin.position, list(begin.entries), list(begin.gaps))
                self._make_channel(name, 0).restore(own, stands, shift)
                self._note(records.CHANNEL_CREATED, name, stands)
        self._begin_holding()
        if held is not None:
            self._first_held = self._first_offset_of(held)
            self.backlog.restore(held, self.seq, shift)
            self._hand_over()
        elif not self.channels:
            self._note(records.CHANNEL_DELETED)  # ephemeral ones, which ended with the process: the topic holds again
        if before.is_current and self.store.log.end == log_end:
            self._saved_end = log_end
        else:
            self._note_change()

    # --- Inside -------------------------------------------------------------------------------------------------------

    @property
    def is_holding(self) -> bool:
        """Whether the topic holds published messages, instead of giving them to its channels."""
        # Hot: runs for every publish.
        return self.paused or self.awaits_channels or not self.channels

    def _begin_holding(self) -> None:
        self.backlog = self._new_backlog(self.seq)
        self._first_held = self.next_offset

    def _end_holding(self, kind: int) -> None:
        self._note(kind)
        self._hand_over()
        self._note_ephemeral()
        self._control_log.commit()

    def _new_backlog(self, position: int, *, logged: bool = True) -> Backlog:
        """Return an empty backlog at that position in the stream; `logged` is false for ephemeral channels."""
        store, reads, memory = self.store, self._reads, self.limits.mem_queue_size
        fetch = None if store is None else store.log.fetch
        if store is None or reads is None or not logged:
            return Backlog(Cursor(None, memory, position), Deferred(None, memory), memory, fetch)
        deferred = Deferred(reads.fetch, memory, store.locate)
        return Backlog(Cursor(store.log, memory, position), deferred, memory, fetch)

    def _hand_over(self) -> None:
        """Give the held messages to every channel, unless the topic still holds."""
        if self.is_holding:
            return
        held, self.backlog = self.backlog, self._new_backlog(self.seq)
        for channel in self.channels.values():
            channel.follow(held)

    def _pass_over(self) -> None:
        """Keep the channels of a paused topic from reading, in the log, messages that the topic held and dropped."""
        for channel in self.channels.values():
            if self.is_holding:
                channel.backlog.cursor.pass_over(self.backlog.cursor.position)

    def _drop(self, count: int) -> None:
        if count and not self.dropped_count:
            log.warning(
                "TOPIC(%s): more than %d messages wait, dropping further ones (see dropped_count in /stats)",
                self.name, self.limits.mem_queue_size,
            )  # fmt: skip
        self.dropped_count += count

    def _note(self, kind: int, name: str = "", seq: int | None = None) -> None:
        """Write a control record: in the log and, soon, in the checkpoint."""
        self._control_log.note(kind, name, self.seq if seq is None else seq)
        self._note_change()

    def _note_ephemeral(self) -> None:
        """Record that the topic does not hold its messages, if all its channels are ephemeral."""
        if not self.is_holding and all(channel.ephemeral for channel in self.channels.values()):
            self._note(records.CHANNEL_CREATED, next(iter(self.channels)))

    def _first_needed(self) -> int:
        """Return the number of the first message that a channel still has to read, or the topic itself."""
        cursors = [channel.backlog.cursor for channel in self.channels.values() if not channel.ephemeral]
        if self.is_holding:
            cursors.append(self.backlog.cursor)
        return min((cursor.position for cursor in cursors), default=self.seq)

    def _note_change(self) -> None:
        if not self._changed and self.store is not None:
            self._changed = True
            self._observer.changed(self)


class _RecentMessages:
    """The last published messages, for as long as clients ask for them."""

    def __init__(self) -> None:
        self.kept: deque[Published] = deque()
        """Oldest first."""
        self.until = 0.0
        self._bytes = 0

    def begin(self, log: TopicLog | None, latest: Iterable[tuple[float, bytes]], now: float, now_ns: int) -> None:
        """Add the messages published before, from the log and ``Backlog.latest``. Raises ``OSError``."""
        known: dict[bytes, Published] = {}
        for group in log.latest(MAX_RECENT) if log is not None else ():
            due_ns = group.due_ns if group.kind == records.DEFERRED else 0
            known.update((message_id(frame), Published(frame, due_ns)) for frame in group.frames[-MAX_RECENT:])
        for due, frame in latest:
            known[message_id(frame)] = Published(frame, now_ns + int((due - now) * _NS_PER_SECOND) if due else 0)
        for each in sorted(known)[-MAX_RECENT:]:  # ids are in the order of publishing
            self._add(known[each])

    def note(self, frames: Sequence[bytes], due_ns: int) -> None:
        """Add messages that are being published."""
        for frame in frames[-MAX_RECENT:]:
            self._add(Published(frame, due_ns))

    def _add(self, published: Published) -> None:
        self.kept.append(published)
        self._bytes += len(published.frame)
        while len(self.kept) > MAX_RECENT or (self._bytes > MAX_RECENT_BYTES and len(self.kept) > 1):
            self._bytes -= len(self.kept.popleft().frame)
