"""A topic: makes messages of bodies, writes them down, and hands the same frames to each of its channels.

While there is no channel, or the topic is paused, messages wait here; the first channel gets all of them, a later one
only what comes after it. So they do while a new topic waits to know which channels there are elsewhere: publishing goes
on, and what was published goes to all of them when they are known.

Invariants:

- Messages are numbered in the order of publishing; a channel's cursor and the log mean the same by a number.
- What is to be logged is in the log before a channel or a producer hears of it, so a failed write changes nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from nsq_compat.log.checkpoint import ChannelState, TopicState
from nsq_compat.log.control_log import ControlLog
from nsq_compat.log.group import (
    CHANNEL_CREATED,
    CHANNEL_DELETED,
    CHANNEL_EMPTIED,
    TOPIC_AWAITS_CHANNELS,
    TOPIC_EMPTIED,
    TOPIC_KNOWS_CHANNELS,
    TOPIC_PAUSED,
    TOPIC_UNPAUSED,
)
from nsq_compat.log.storage import TopicStore
from nsq_compat.log.topic_log import LogEnd
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.backlog import Backlog, BacklogFactory, Peek
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.errors import REFUSES_ALL, Admission, Exiting
from nsq_compat.queue.ids import FrameFactory
from nsq_compat.queue.large_publish import LargeBatch
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.recent_messages import MOST, Published, RecentMessages
from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

_NS_PER_SECOND: Final = 1_000_000_000


class TopicObserver(Protocol):
    """Who wants to know what comes and goes: metadata, nsqlookupd, and the broker itself."""

    def channel_created(self, topic: "Topic", channel: Channel) -> None: ...

    def channel_deleted(self, topic: "Topic", channel: Channel) -> None: ...

    def changed(self, topic: "Topic") -> None:
        """There is something a checkpoint should know; said once until the next one."""


class Topic:
    """Made by a broker; `exiting` once it is deleted or the daemon stops. Without a store it lives in memory alone."""

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
        self.admission: Admission | None = None
        """Who has to admit what is published; NSQ knows none."""
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0
        self.rejected_count = 0
        self._limits = limits
        self._schedule = schedule
        self._observer = observer
        self.store = store
        self._frames = FrameFactory(limits.node_id)
        self._seq = 0
        self._large_batches: deque[LargeBatch] = deque()
        self._control_log = ControlLog(name, store)
        self._changed = False
        self._saved_end: LogEnd | None = None
        self._recent: RecentMessages | None = None
        self._backlogs = BacklogFactory(limits, store, schedule)
        self.backlog = self._hold_from_here()
        if store is not None:
            store.serve(limits.mem_queue_size, self._first_needed)

    @property
    def depth(self) -> int:
        """Messages no channel has got yet."""
        return len(self.backlog) + len(self.backlog.deferred)

    @property
    def full_name(self) -> str:
        """For log lines and clients, as a channel has one."""
        return f"topic {self.name}"

    def recent(self, count: int, now: float, now_ns: int) -> Sequence[Published]:
        """What was published last, finished or not, oldest first. May raise ``OSError``.

        Whoever asks again and again misses nothing. The first time it is what the log and memory still have.
        """
        if self._recent is None:
            recent = RecentMessages(self._forget_recent)
            recent.begin(self.store.log if self.store is not None else None, self._peeks(), now, now_ns)
            self._recent = recent
        self._schedule.at(self._recent.ask(now), self._recent)
        return self._recent.latest(count)

    def _peeks(self) -> Iterator[Peek]:
        """The newest messages in memory. They may be in no log."""
        yield self.backlog.latest(MOST, ())
        for channel in self.channels.values():
            yield channel.peek_latest(MOST)

    def _forget_recent(self) -> None:
        self._recent = None

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def publish(self, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> None:
        """Make messages, all of them or none. `defer` in seconds. Raises ``Refused`` and ``OSError``."""
        if self.admission is not None:
            self.admission.admit(len(bodies), now)
        frames, joined, size = self._frames.make(bodies, now_ns)
        if defer > 0:
            self._defer(frames, now + defer, now_ns + int(defer * _NS_PER_SECOND))
        else:
            self._deliver(frames, joined)
        self.message_count += len(bodies)
        self.message_bytes += size
        if self._recent is not None:
            self._recent.note(frames, now_ns + int(defer * _NS_PER_SECOND) if defer > 0 else 0)
        if self.store is not None and self.store.commits:
            self.store.commit()

    def large_batch(self, bodies: list[bytes], now: float, now_ns: int) -> LargeBatch:
        """A publish in steps, for bodies that are ``is_large``. To be stepped to its end, or cancelled."""
        store = self.store
        # At level fsync a batch that a power cut leaves half written has to show, which takes one group for all of it.
        stages = store is not None and not store.commits
        return LargeBatch(
            bodies,
            now_ns,
            self._frames,
            self._large_batches,
            store=store if stages else None,
            keep=self._limits.mem_queue_size if stages or store is None else len(bodies),
            admit=lambda count: self._admit(count, now),
            publish=self._publish_batch,
        )

    def _publish_batch(self, batch: LargeBatch) -> None:
        store, count = self.store, batch.count
        if store is not None and batch.staged is None:
            self._deliver([frame for frames in batch.kept for frame in frames], b"")
        else:
            if store is not None and batch.staged is not None:
                store.attach(batch.staged, self._seq)
                batch.staged = None
            self._seq += count
            if self._holding:
                self._drop(self.backlog.cursor.extend_by(count, batch.kept))
            else:
                for channel in self.channels.values():
                    channel.put_batch(count, batch.kept)
        self.message_count += count
        self.message_bytes += batch.size
        if self._recent is not None:
            self._recent.note(batch.latest, 0)
        if store is not None and store.commits:
            store.commit()

    def _admit(self, count: int, now: float) -> None:
        if self.exiting:
            raise Exiting
        if self.admission is not None:
            self.admission.admit(count, now)

    def _deliver(self, frames: Sequence[bytes], joined: bytes) -> None:
        # Hot: once for every publish.
        store = self.store
        if store is not None:
            store.append(frames, self._seq, joined=joined)
        self._seq += len(frames)
        if self._holding:
            self._drop(self.backlog.cursor.extend(frames))
        else:
            for channel in self.channels.values():
                channel.put(frames)

    def _defer(self, frames: Sequence[bytes], due: float, due_ns: int) -> None:
        targets = (
            [self.backlog.deferred] if self._holding else [each.backlog.deferred for each in self.channels.values()]
        )
        locations: Sequence[bytes] = ()
        if self.store is not None:
            fit_in_memory = all(each.fit_in_memory(len(frames)) for each in targets)
            locations = self.store.append_deferred(frames, self._seq, due_ns, fit_in_memory=fit_in_memory)
        if self._holding:
            self._drop(self.backlog.defer(frames, due, locations))
        else:
            for channel in self.channels.values():
                channel.defer(frames, due, locations)
        self._note_change()

    # --- Channels -----------------------------------------------------------------------------------------------------

    def channel(self, name: str) -> Channel:
        """The channel of that (valid) name, made if need be. Raises ``Exiting`` and ``OSError``."""
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise Exiting
            was_holding = self._holding
            position = self.backlog.cursor.position if was_holding else self._seq
            if self.store is not None and not is_ephemeral(name):
                self._control_log.note_creation(name, position)
            channel = self._make_channel(name, position)
            log.info("TOPIC(%s): new channel(%s)", self.name, name)
            if was_holding:  # else what is held is empty, and of a time before what was published since
                self._hand_over()
            self._note_ephemeral()
            self._note_change()
            self._observer.channel_created(self, channel)
            if self.store is not None:
                self.store.commit()  # last, because others run meanwhile
        return channel

    def delete_channel(self, name: str) -> None:
        """End a channel with all it holds. Raises ``KeyError``."""
        self._delete(self.channels[name])
        self._control_log.settle()

    def _make_channel(self, name: str, position: int) -> Channel:
        store = None if is_ephemeral(name) else self.store
        channel = Channel(
            self.name,
            name,
            self._limits,
            self._schedule,
            backlog=self._backlogs.make(position, logged=store is not None),
            on_abandoned=self._delete,
            on_change=self._note_change,
            on_requeued=None if store is None else self._control_log.note_requeued,
        )
        self.channels[name] = channel
        self._backlogs.set_channel_count(len(self.channels))
        return channel

    def _delete(self, channel: Channel) -> None:
        log.info("TOPIC(%s): deleting channel %s", self.name, channel.name)
        del self.channels[channel.name]
        self._backlogs.set_channel_count(len(self.channels))
        channel.delete()
        if not self.channels and not self._held_back:
            self.backlog = self._hold_from_here()
        if not channel.ephemeral or self._holding:
            self._note(CHANNEL_DELETED, channel.name)
        self._note_ephemeral()
        self._note_change()
        self._observer.channel_deleted(self, channel)

    # --- Control ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Keep what is published; the channels go on with what they have."""
        if not self.paused:
            self._begin_holding()
            self.paused = True
            self._note(TOPIC_PAUSED, "")
            self._note_change()
            self._control_log.settle()

    def unpause(self) -> None:
        """Give the channels what was kept."""
        if self.paused:
            self.paused = False
            self._note(TOPIC_UNPAUSED, "")
            self._end_holding()

    def await_channels(self) -> None:
        """Keep what is published until `learn_channels`; those who publish notice nothing."""
        if not self.awaits_channels:
            self._begin_holding()
            self.awaits_channels = True
            self._note(TOPIC_AWAITS_CHANNELS, "")
            self._note_change()

    def learn_channels(self, names: Iterable[str]) -> None:
        """Make these channels, and give all there are what was kept. Raises ``Exiting``, ``OSError``: ask again then.

        nsqd: not the ephemeral ones, which have no consumer here.
        """
        if self.exiting:
            raise Exiting
        for name in names:
            if not is_ephemeral(name):
                self.channel(name)
        if self.awaits_channels:
            self.awaits_channels = False
            self._note(TOPIC_KNOWS_CHANNELS, "")
            self._end_holding()

    def empty(self) -> None:
        """Drop what no channel has got yet; the channels keep what they have (nsqd)."""
        self.backlog.empty()
        self._pass_over()
        self._note(TOPIC_EMPTIED, "")
        self._note_change()
        self._control_log.settle()

    def empty_channel(self, name: str) -> None:
        """Drop everything a channel has: waiting, deferred and in flight. Raises ``KeyError``."""
        self.channels[name].empty()
        self._note(CHANNEL_EMPTIED, name)
        self._note_change()
        self._control_log.settle()

    def close(self) -> None:
        """The daemon stops: nothing is taken or given any more. What is held stays where it is kept."""
        self.exiting = True
        self.admission = REFUSES_ALL
        for channel in self.channels.values():
            channel.close()

    def flush(self) -> None:
        """Write what is in memory only, when the daemon stops, so that a checkpoint can name it. Raises ``OSError``."""
        if self.store is not None:
            self.store.flush(self._frames_in_memory)

    def delete(self) -> None:
        """The topic ends, with its channels and all they hold."""
        self.exiting = True
        self.admission = REFUSES_ALL
        for channel in self.channels.values():
            channel.delete()
        self._control_log.discard_requeued()
        if self.store is not None:
            self.store.delete()

    # --- Bounds of what it holds (``bounds.Bounded``) -----------------------------------------------------------------

    @property
    def is_holding(self) -> bool:
        """Whether what is published waits here, and not in the channels."""
        return self._holding

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Forget the oldest of what no channel has got, count it as dropped, return how many. Raises ``OSError``."""
        count = self.backlog.drop_oldest(limit, max_bytes)
        self.dropped_count += count
        self._pass_over()
        self._note_change()
        return count

    # --- What must survive --------------------------------------------------------------------------------------------

    def checkpoint(self, now: float, now_ns: int) -> TopicState:
        """Where every channel stands, as of now; changes are announced anew from here on."""
        assert self.store is not None, "what lives in memory alone has no checkpoint"
        self._changed = False
        self._control_log.write_requeued()  # before the end of the log, so that it is not replayed
        log_end = self.store.log.begin_checkpoint()._replace(seq=self._seq)
        state = TopicState(log_end, now_ns / _NS_PER_SECOND - now, self._frames.ids.last)
        state.channels = {name: each.state() for name, each in self.channels.items() if not each.ephemeral}
        state.held = self.backlog.state() if self._holding else None
        state.paused, state.awaits_channels = self.paused, self.awaits_channels
        self.store.note_missing(state)
        return state

    def checkpoint_saved(self, saved: TopicState) -> None:
        """This checkpoint is the one on the disk."""
        self._saved_end = saved.end

    @property
    def is_checkpoint_current(self) -> bool:
        """Whether the checkpoint on the disk says all that a new one would say, and memory holds nothing besides."""
        return (
            not self._changed
            and self.store is not None
            and self.store.is_saved(self._saved_end)
            and not any(channel.in_flight_count for channel in self.channels.values())
        )

    def release(self, saved: TopicState, pause: Callable[[], None] = lambda: None) -> None:
        """Delete what is not needed any more now that this checkpoint is saved, with pauses if that is much work."""
        assert self.store is not None, "what lives in memory alone has no checkpoint"
        if not self.exiting:
            self.store.release(saved, pause)

    def restore(self, before: TopicState, channels: Iterable[str], now: float, now_ns: int) -> None:
        """Be as before; channels that are named and were not there begin here, unless nobody knows which there were."""
        assert self.store is not None, "only a store remembers"
        shift = before.clock_offset - (now_ns / _NS_PER_SECOND - now)
        log_end = self.store.log.end
        self._seq = before.end.seq
        self._frames.ids.start_after(before.last_id)
        self.paused = before.paused
        self.awaits_channels = before.awaits_channels
        held = before.held
        stands = self._seq if held is None else held.position
        for name, state in before.channels.items():
            self._make_channel(name, 0).restore(state, stands, shift)
        if not self.store.log.has_begun:
            self._note_all(stands)
        begin = ChannelState(stands) if held is not None or before.everything is None else before.everything
        for name in channels:
            if name not in self.channels and name not in before.gone and not is_ephemeral(name):
                own = ChannelState(begin.position, list(begin.entries), list(begin.gaps))
                self._make_channel(name, 0).restore(own, stands, shift)
                self._note(CHANNEL_CREATED, name, stands)
        self.backlog = self._hold_from_here()
        if held is not None:
            self.backlog.restore(held, self._seq, shift)
            self._hand_over()
        elif not self.channels:
            self._note(CHANNEL_DELETED, "")  # the ephemeral ones, which ended with the process: the topic holds again
        if before.is_current and self.store.log.end == log_end:
            self._saved_end = log_end
        else:
            self._note_change()

    # --- Inside -------------------------------------------------------------------------------------------------------

    @property
    def _holding(self) -> bool:
        # Hot: asked for every publish. `_held_back` in other words, which saves a call.
        return self.paused or self.awaits_channels or not self.channels

    @property
    def _held_back(self) -> bool:
        return self.paused or self.awaits_channels

    def _begin_holding(self) -> None:
        if not self._holding:
            self.backlog = self._hold_from_here()

    def _end_holding(self) -> None:
        self._hand_over()
        self._note_ephemeral()
        self._note_change()
        self._control_log.settle()

    def _hold_from_here(self) -> Backlog:
        return self._backlogs.make(self._seq)

    def _hand_over(self) -> None:
        """What was held goes to every channel, unless it has to be held on."""
        if self._holding:
            return
        held, self.backlog = self.backlog, self._hold_from_here()
        for channel in self.channels.values():
            channel.follow(held)

    def _pass_over(self) -> None:
        """What was held and is not any more is not for the channels of a paused topic to read in the log."""
        for channel in self.channels.values():
            if self._holding:
                channel.backlog.cursor.pass_over(self.backlog.cursor.position)

    def _drop(self, count: int) -> None:
        if count and not self.dropped_count:
            log.warning(
                "TOPIC(%s): more than %d messages wait, dropping what comes now (see dropped_count in /stats)",
                self.name, self._limits.mem_queue_size,
            )  # fmt: skip
        self.dropped_count += count

    def _note(self, kind: int, name: str, seq: int | None = None) -> None:
        self._control_log.note(kind, name, self._seq if seq is None else seq)

    def _note_ephemeral(self) -> None:
        """All goes to channels that end with the process: the log has to say that the topic does not hold it."""
        if not self._holding and all(channel.ephemeral for channel in self.channels.values()):
            self._note(CHANNEL_CREATED, next(iter(self.channels)))

    def _note_all(self, seq: int) -> None:
        """What an empty log begins with, if the topic is older."""
        for name in self.channels:
            self._note(CHANNEL_CREATED, name, seq)
        if self.paused:
            self._note(TOPIC_PAUSED, "", seq)
        if self.awaits_channels:
            self._note(TOPIC_AWAITS_CHANNELS, "", seq)

    def _first_needed(self) -> int:
        """The number of the first message that a channel still reads, or the topic for its first channel."""
        cursors = [channel.backlog.cursor for channel in self.channels.values() if not channel.ephemeral]
        if self._holding:
            cursors.append(self.backlog.cursor)
        return min((cursor.position for cursor in cursors), default=self._seq)

    def _frames_in_memory(self) -> Iterator[bytes]:
        for channel in self.channels.values():
            if not channel.ephemeral:
                yield from channel.frames()
        yield from self.backlog.frames()

    def _note_change(self) -> None:
        if not self._changed and self.store is not None:
            self._changed = True
            self._observer.changed(self)
