"""A channel: one copy of a topic's stream, shared out among its consumers.

Invariants:

- *Conservation.* Every frame that was put is in exactly one place: the backlog, one in-flight set (a consumer's, that
  of the consumers that left, or that of messages on their way to the dead-letter topic), or deferred; or it is
  finished. Messages that are dropped or dead-lettered are counted.
- *Attempts.* A queued frame carries the attempt number of its next delivery, a frame in flight that of its last one.
- *Fair waking.* No more consumers are woken than there are frames, they are woken in turn, and each takes at most its
  share of the depth (see ``wait_queue``). Unless the channel is paused, one of these is true: as many consumers are
  awake as there are frames, no consumer waits, or a nearer one is awake. It stays true when a woken consumer takes
  frames or stands back.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nsq_compat.log.checkpoint import ChannelState, Replay
from nsq_compat.protocol.message import attempts, expires_ns, next_attempts
from nsq_compat.protocol.message import message_id as id_of
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.backlog import Backlog, Cursor, Peek
from nsq_compat.queue.departed import Departed
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.latency import Latency
from nsq_compat.queue.returns import OPERATOR, TIMED_OUT, Returns
from nsq_compat.queue.schedule import AT_ONCE, NEVER, Schedule
from nsq_compat.queue.values import ClientStats, Exiting, QueueLimits
from nsq_compat.queue.wait_queue import NO_LIMITS, DeliveryLimits, Throttle, Waiting, WaitQueue, ZoneWaitQueue

log = logging.getLogger(__name__)

MAX_BATCH: Final = 256
"""Frames that a consumer takes at once, so that a fast one does not delay the others."""
MAX_BATCH_BYTES: Final = 256 * 1024
RETRY_SECONDS: Final = 0.1
"""Pause before the first retry of a failed read."""
LONGEST_RETRY_SECONDS: Final = 3.2
"""The pause is doubled before each further retry, up to this."""
_EXPIRED_AT_ONCE: Final = 1024
"""Timeouts handled by one alarm, about 2 ms of work; other clients are served before the next."""
_RELEASE_SECONDS: Final = 0.002
"""Pause between two releases of deferred messages, so that messages with close due times are released together."""
_ANSWER_SECONDS: Final = 0.05
"""Pause before a message that is replayed while it is in flight is tried again."""
_FULL_SECONDS: Final = 60.0
"""Pause before an expired message is tried again that the dead-letter queue has no room for."""
_HOLD_SECONDS: Final = 1.0
"""Time in which an operator's search must take its next step; deliveries go on after it in any case."""

_NS_PER_SECOND: Final = 1_000_000_000

NOT_IN_FLIGHT: Final = "ID not in flight"
NOT_OWNER: Final = "client does not own message"


class NotInFlight(Exception):
    """The message is not in flight at this consumer. The text is NSQ's reason."""


class TooManyConsumers(Exception):
    """The channel has as many consumers as allowed."""


class DeadLetterQueue(Protocol):
    """Holds messages of a channel that exceeded their attempts. The channel counts them as in flight."""

    in_flight: InFlight

    def enqueue_exhausted(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Keep the frames that are not to be delivered again; return the others."""

    def enqueue_expired(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Keep the frames, which have expired, if the policy says so; return those that there is no room for."""


class Holder(Protocol):
    """Holds frames that are not answered."""

    in_flight: InFlight

    @property
    def client(self) -> tuple[str, str]:
        """The id and the address of the client."""


class Consumer(Waiting, Holder, Protocol):
    """Takes frames, and holds those that it has not answered."""

    def close(self) -> None:
        """The channel is closed or deleted."""

    def begin_headers(self) -> None:
        """Frames may have headers from now on."""

    def stats(self) -> ClientStats:
        """Return its values in /stats."""


class _Retry:
    """The back-off between attempts to read."""

    def __init__(self) -> None:
        self.is_waiting = False
        """Whether reads are suspended until the next attempt."""
        self.until = NEVER
        """When the next attempt, or the next step of a long read, is due; ``NEVER`` if it is not waiting."""
        self._delay = 0.0
        self._failed_at = -NEVER

    def failed(self, now: float) -> bool:
        """Suspend reads; returns whether this is the first failure for a while."""
        is_first = now - self._failed_at > 2 * LONGEST_RETRY_SECONDS
        self._delay = RETRY_SECONDS if is_first else min(2 * self._delay, LONGEST_RETRY_SECONDS)
        self._failed_at = now
        self.wait_until(now + self._delay)
        return is_first

    def wait_until(self, until: float) -> None:
        self.until = until
        self.is_waiting = until < NEVER


@dataclass(frozen=True, slots=True)
class Hooks:
    """A channel's limits, and what it asks its topic. It has more attributes than CPython keeps inline otherwise."""

    limits: QueueLimits
    on_abandoned: Callable[["Channel"], None]
    """Called when the last consumer has left an ephemeral channel."""
    clock_offset: Callable[[], float]
    """The wall clock minus the monotonic clock, in seconds."""
    on_requeued: Callable[[str, bytes, int, float], None] | None = None
    """Called for a message requeued with a delay: channel, id, attempts at the next delivery, due time."""


class Channel:
    """Created by a topic. `now` is monotonic seconds everywhere. `exiting` once it is deleted or nsqd stops.

    `on_change` is called when `state` changes in a way that the log does not record.
    """

    def __init__(
        self,
        topic_name: str,
        name: str,
        schedule: Schedule,
        *,
        backlog: Backlog,
        on_change: Callable[[], None],
        hooks: Hooks,
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.paused = False
        self.exiting = False
        self.has_headers = False
        """Messages may have headers."""
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped_count = 0
        self.dead_letter_count = 0
        self.expired_count = 0
        self.rejected_count = 0
        self.policy: Mapping[str, Any] = {}
        """The settings of the policies that apply, for /stats."""
        self.dead_letters: DeadLetterQueue | None = None
        self.consumers: dict[Consumer, None] = {}
        self.latency = None if hooks.limits.latency is None else Latency(hooks.limits.latency)
        self.alarm = NEVER
        self._schedule = schedule
        self.on_change = on_change
        self._hooks = hooks
        self.backlog = backlog
        self._cursor = backlog.cursor  # Hot: saves an attribute for every publish
        self.departed = Departed()
        self.returns = Returns()
        self._delivered_count = 0
        self._log_retry = _Retry()  # nothing is taken while it is waiting
        self._deferred_retry = _Retry()
        zones = ZoneWaitQueue() if hooks.limits.topology_aware else None  # nearby consumers come first
        self._wait_queue: WaitQueue = WaitQueue() if zones is None else zones
        self._notified: ZoneWaitQueue | Throttle | None = zones  # of every delivery and answer

    # --- Messages it has ----------------------------------------------------------------------------------------------

    @property
    def zones(self) -> ZoneWaitQueue | None:
        """The wait queue if nearby consumers come first."""
        queue = self._wait_queue.inner if isinstance(self._wait_queue, Throttle) else self._wait_queue
        return queue if isinstance(queue, ZoneWaitQueue) else None

    @property
    def ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def full_name(self) -> str:
        """The name in log lines and errors: ``channel orders:archive``."""
        return f"channel {self.topic_name}:{self.name}"

    @property
    def depth(self) -> int:
        """The number of messages that could be delivered now, without those in flight or deferred."""
        return len(self.backlog)

    @property
    def deferred_count(self) -> int:
        return len(self.backlog.deferred)

    @property
    def in_flight_count(self) -> int:
        return sum(len(each) for each in self.in_flight_sets())

    @property
    def unanswered_count(self) -> int:
        """The number of messages in flight at consumers, also at those that have left."""
        return sum(len(each.in_flight) for each in self.consumers) + len(self.departed)

    @property
    def delivered(self) -> Sequence[int]:
        """Deliveries by ``Locality``. nsqd: all of them are global without topology-aware consumption."""
        zones = self.zones
        return (0, 0, self._delivered_count) if zones is None else zones.counts

    def peek(self, count: int) -> Peek:
        """Return at most `count` messages of each kind. Raises ``OSError``."""
        return self.backlog.peek(count, self.in_flight_sets())

    # --- Frames in ----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> None:
        """Add a published batch: the same frames for every channel, never to be changed."""
        # Hot: runs for every publish, once per channel.
        self.message_count += len(frames)
        dropped = self._cursor.extend(frames)
        if dropped:
            self._drop(dropped)
        if self._wait_queue.waiting and not self.paused and not self._log_retry.is_waiting:
            self._wait_queue.wake(len(self.backlog))

    def put_batch(self, count: int, first: Sequence[Sequence[bytes]]) -> None:
        """Like ``put``, for `count` messages; `first` has those that memory may hold (``Cursor.extend_by``)."""
        self.message_count += count
        self._drop(self._cursor.extend_by(count, first))
        self.wake()

    def defer(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes]) -> None:
        """Add a batch that must not be delivered before `due`; `locations` are those in the log, if it is there."""
        self.message_count += len(frames)
        self._drop(self.backlog.deferred.add_new(frames, due, locations))
        self._schedule.at(due, self)

    def take_in(self, entries: Sequence[tuple[float, bytes, int]]) -> None:
        """Add messages of another nsqd, see ``Backlog.take_in``."""
        self.message_count += len(entries)
        self.backlog.take_in(entries)
        self._schedule.at(self.backlog.deferred.next_due(), self)
        self.wake()

    def follow(self, held: Backlog) -> None:
        """Add a copy of the messages that the topic held."""
        self.message_count += len(held.cursor) + len(held.deferred)
        self._drop(self.backlog.follow(held))
        self._schedule.at(self.backlog.deferred.next_due(), self)
        self.wake()

    # --- Frames out ---------------------------------------------------------------------------------------------------

    def take(self, consumer: Consumer, room: int, now: float, timeout: float) -> Sequence[bytes]:
        """Deliver a batch of at most `room` frames to a consumer; they are in flight until `now + timeout`.

        A consumer that gets nothing, or empties the backlog and has room left, is woken when there are messages for it.
        A consumer that gets some, has room left and does not empty the backlog must call again. A log that cannot be
        read is tried again later, and a long read continues at the next alarm.
        """
        share = self._wait_queue.share(consumer, len(self.backlog))
        if self.paused or not share or self._log_retry.is_waiting:
            self._wait_queue.wait(consumer)
            return ()
        wanted = room if room < share else share  # Hot: written out, because `min` is a call
        if wanted > MAX_BATCH:
            wanted = MAX_BATCH
        try:
            frames = self.backlog.take(wanted, MAX_BATCH_BYTES)
        except BlockingIOError:
            # Suspend reads, because otherwise each of a hundred waiting consumers would now do a step.
            self._log_retry.wait_until(AT_ONCE)
            self._schedule.at(AT_ONCE, self)
            self._wait_queue.wait(consumer)
            return ()
        except OSError as error:
            if self._log_retry.failed(now):
                log.warning("CHANNEL(%s): cannot read messages, trying again - %s", self.name, error)
            self._schedule.at(self._log_retry.until, self)
            self._wait_queue.wait(consumer)
            return ()
        if self.has_headers:
            frames = self._without_expired(frames, now)
        is_empty = not self.backlog
        if self.backlog.without_in_flight is None:
            consumer.in_flight.add(frames, now, timeout)
        else:
            consumer.in_flight.add_again(frames, now, timeout)
        if now + timeout < self.alarm:
            self._schedule.at(now + timeout, self)
        if is_empty:
            if len(frames) < room:
                self._wait_queue.wait(consumer)
        elif not frames:  # the messages were damaged or have expired, and others follow, perhaps thousands
            self._log_retry.wait_until(AT_ONCE)
            self._schedule.at(AT_ONCE, self)
            self._wait_queue.wait(consumer)
        self._delivered_count += len(frames)
        if self._notified is not None:
            self._notified.delivered(consumer, len(frames), room, len(self.backlog), now)
        return frames

    @property
    def is_reading(self) -> bool:
        """Whether a long read continues at the next alarm."""
        return self._log_retry.until == AT_ONCE

    def begin_headers(self) -> None:
        """Note, for consumers that did not ask for headers, that messages from now on may have some."""
        self.has_headers = True
        for consumer in self.consumers:
            consumer.begin_headers()

    def leave_wait_queue(self, consumer: Consumer) -> None:
        """Note that the consumer takes nothing for now. If it was woken, another one is woken instead."""
        if self._wait_queue.leave(consumer):
            self.wake()

    # --- Another place in the log (``replay``) ------------------------------------------------------------------------

    def move(self, cursor: Cursor) -> None:
        """Go on with this cursor."""
        self.backlog.cursor = self._cursor = cursor
        self.returns.clear()  # messages may come again as if for the first time
        if type(cursor) is not Cursor:
            self.backlog.without_in_flight = self.without_in_flight
        if (replay := cursor.replay()) is not None:
            self.message_count += sum(end - begin for begin, end in replay.ranges)
        self.wake()

    def drop_taken(self) -> int:
        """Drop the messages in flight, returned and deferred; returns how many."""
        count = self.in_flight_count + len(self.backlog) - len(self.backlog.cursor) + self.deferred_count
        self.backlog.drop_taken()
        for in_flight in self.in_flight_sets():
            in_flight.clear()
        for consumer in self.consumers:
            consumer.wake()  # it has room again
        self.dropped_count += count
        return count

    def defer_again(self, frames: Sequence[bytes], due: float) -> None:
        """Defer messages that it has delivered before or does not have yet; without a log, as many as fit."""
        self._drop(self.backlog.deferred.add_new(frames, due))
        self._schedule.at(due, self)

    def without_in_flight(self, frames: Sequence[bytes], now: float = AT_ONCE) -> Sequence[bytes]:
        """Return those of these frames that are not in flight, each once; the others are deferred for a moment."""
        flights = [in_flight.frames for in_flight in self.in_flight_sets()]
        alone: dict[bytes, bytes] = {}
        apart: list[bytes] = []
        for frame in frames:
            message_id = id_of(frame)
            if message_id in alone or any(message_id in each for each in flights):
                apart.append(frame)
            else:
                alone[message_id] = frame
        if not apart:
            return frames
        self.defer_again(apart, now and now + _ANSWER_SECONDS)
        return list(alone.values())

    # --- Answers ------------------------------------------------------------------------------------------------------

    def finish(self, consumer: Holder, ids: Sequence[bytes]) -> list[bytes]:
        """Finish messages; returns the ids that were not in flight at this consumer."""
        self.on_change()
        if self._notified is not None:
            self._notified.answered()
        return consumer.in_flight.finish(ids)

    def requeue(self, consumer: Holder, message_id: bytes, now: float, delay: float) -> None:
        """Requeue a message, to be delivered again after `delay` seconds. Raises ``NotInFlight``."""
        frame = consumer.in_flight.take(message_id)
        if frame is None:
            raise NotInFlight(self.reason_not_in_flight(message_id))
        self.requeue_count += 1
        self.returns.note_requeue(message_id, now, consumer.client)
        self.on_change()
        if self._notified is not None:
            self._notified.answered()
        again = next_attempts(self._without_dead_letters([frame]))
        if delay > 0 and again:
            self.defer_again(again, now + delay)
            if self._hooks.on_requeued is not None:
                self._hooks.on_requeued(self.name, message_id, attempts(again[0]), now + delay)
        else:
            self.put_back(again, now)

    def touch(self, consumer: Holder, message_id: bytes, now: float, timeout: float) -> None:
        """Give a consumer more time for a message, up to max-msg-timeout in all. Raises ``NotInFlight``."""
        deadline = consumer.in_flight.touch(message_id, now + timeout, self._hooks.limits.max_msg_timeout)
        if deadline is None:
            raise NotInFlight(self.reason_not_in_flight(message_id))
        self._schedule.at(deadline, self)

    def reason_not_in_flight(self, message_id: bytes) -> str:
        """Return NSQ's reason why a consumer cannot answer a message that is not in flight at it."""
        elsewhere = any(message_id in in_flight.frames for in_flight in self.in_flight_sets())
        return NOT_OWNER if elsewhere else NOT_IN_FLIGHT

    def in_flight_of(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of these messages that are in flight, at any consumer."""
        # Hundreds at once cost one look at each consumer, of which there may be thousands.
        wanted = set(ids)
        return {found for in_flight in self.in_flight_sets() for found in in_flight.frames.keys() & wanted}

    def put_back(self, frames: Sequence[bytes], now: float) -> None:
        """Deliver frames again. They carry the attempts of their next delivery.

        Those that memory has no room for are deferred, so that they are released when there is.
        """
        room = self.backlog.room if self.backlog.on_room is None else 0  # due messages wait for room, and come first
        if len(frames) > room:
            kept = max(0, room)
            self.defer_again(frames[kept:], now)
            frames = frames[:kept]
        self._put_back(frames)

    def _put_back(self, frames: Sequence[bytes]) -> None:
        self.backlog.put_back(frames)
        if self._wait_queue.waiting:
            self.wake()

    # --- Messages taken out by an operator (``withdrawal``) -----------------------------------------------------------

    def hold(self, now: float) -> float:
        """Deliver nothing, and release no deferred message, for a moment; returns until when."""
        until = now + _HOLD_SECONDS
        self._log_retry.wait_until(until)
        self._deferred_retry.wait_until(until)
        self._schedule.at(until, self)
        return until

    def is_held_until(self, until: float) -> bool:
        """Whether the last ``hold`` that returned this time is still in force."""
        return self._log_retry.until == until

    def end_hold(self) -> None:
        self._log_retry.wait_until(NEVER)
        self._deferred_retry.wait_until(NEVER)
        self._schedule.at(AT_ONCE, self)
        self.wake()

    def take_in_flight(self, ids: AbstractSet[bytes]) -> list[bytes]:
        """Take messages from the consumers that have them; returns their frames, for the next delivery.

        An answer of such a consumer then fails, as for any message that is not in flight.
        """
        frames: list[bytes] = []
        for consumer in self.consumers:
            if taken := consumer.in_flight.take_all(ids):
                frames += taken
                consumer.wake()  # it has room again
        for in_flight in self.in_flight_sets():  # of consumers that left, and of the dead-letter queue
            frames += in_flight.take_all(ids)
        return next_attempts(frames)

    def set_aside(self, limit: int, now: float, timeout: float) -> Sequence[bytes]:
        """Take the next messages out, also of a paused channel; they are in flight until `now + timeout`.

        The caller finishes them (``finish_set_aside``) or returns them (``return_set_aside``). Raises ``OSError``,
        having taken nothing, as ``Backlog.take`` does.
        """
        if self._log_retry.is_waiting:
            return ()
        frames = self.backlog.take(min(limit, MAX_BATCH), MAX_BATCH_BYTES)
        self.departed.add(frames, now, timeout)
        self._schedule.at(now + timeout, self)
        self.on_change()
        return frames

    def finish_set_aside(self, frames: Sequence[bytes]) -> None:
        self.departed.finish(list(map(id_of, frames)))
        self.on_change()

    def return_set_aside(self, frames: Sequence[bytes], now: float) -> None:
        """Deliver those that are still there as if they had never been taken out."""
        self.put_back(self.departed.take_all(set(map(id_of, frames))), now)

    def requeue_withdrawn(self, frames: Sequence[bytes], now: float, delay: float) -> None:
        """Deliver messages that were taken out again, after `delay` seconds. It is not a failed attempt."""
        self.requeue_count += len(frames)
        self.returns.note(map(id_of, frames), OPERATOR, now, None)
        self.on_change()
        if delay <= 0:
            self.put_back(frames, now)
            return
        due = now + delay
        self.defer_again(frames, due)
        if self._hooks.on_requeued is not None:
            for frame in frames:
                self._hooks.on_requeued(self.name, id_of(frame), attempts(frame), due)

    # --- Consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe a consumer. Raises ``TooManyConsumers`` and ``Exiting``."""
        if self.exiting:
            raise Exiting
        limit = self._hooks.limits.max_channel_consumers
        if limit and len(self.consumers) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}")
        self.consumers[consumer] = None

    def remove_consumer(self, consumer: Consumer, *, answerable: bool = False) -> None:
        """Unsubscribe a consumer. If its messages are `answerable`, answers may follow, see ``Departed.answerable``.

        nsqd: its messages in flight are not requeued now, but when they time out. So a message that crashes consumers
        does not crash all of them within a second.
        """
        if self.consumers.pop(consumer, self) is self:
            return
        self.leave_wait_queue(consumer)
        if len(consumer.in_flight):
            self.returns.note_departure(consumer.in_flight.frames, consumer.client)
            self.departed.absorb(consumer.in_flight, answerable=answerable)
        if self.ephemeral and not self.consumers and not self.exiting:
            self._hooks.on_abandoned(self)

    # --- Control ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop deliveries. Timeouts and deferred messages are still handled."""
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.wake()

    def throttle(self, limits: DeliveryLimits, now: float) -> None:
        """Limit deliveries."""
        queue = self._wait_queue
        if isinstance(queue, Throttle) and limits == NO_LIMITS:
            self._wait_queue = queue.inner
            self._notified = self.zones
            self._schedule.cancel(queue)
            self.wake()
        elif limits != NO_LIMITS:
            if not isinstance(queue, Throttle):
                queue = self._wait_queue = self._notified = Throttle(queue, self._schedule, self)
            queue.set_limits(limits, now)

    def empty(self) -> None:
        """Drop all messages, also those deferred and in flight."""
        self._forget_all()
        for consumer in self.consumers:
            consumer.wake()  # it has room again

    def close(self) -> None:
        """Close the consumers and stop deliveries. The messages stay, for the last checkpoint."""
        self.exiting = True
        self._schedule.cancel(self)
        if isinstance(self._wait_queue, Throttle):
            self._schedule.cancel(self._wait_queue)
        for consumer in list(self.consumers):
            consumer.close()

    def delete(self) -> None:
        """Close the channel and drop its messages."""
        self.close()
        self._forget_all()

    def on_alarm(self, now: float) -> float:
        """Requeue some of the messages that timed out, and release some that are due; returns when to continue."""
        left = _EXPIRED_AT_ONCE
        for consumer in list(self.consumers):
            if expired := self._expire(consumer.in_flight, now, left, consumer):
                left -= expired
                consumer.wake()  # it has room again
        self._expire(self.departed, now, left)
        if now >= self._log_retry.until:
            self._log_retry.wait_until(NEVER)
            self.wake()
        deadlines = [consumer.in_flight.next_deadline() for consumer in self.consumers]
        deadlines += [in_flight.next_deadline() for in_flight in self._dying()]
        return min([self._release_deferred(now), self._log_retry.until, self.departed.next_deadline(), *deadlines])

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Drop the next messages, and count them as dropped; returns how many. Raises ``OSError``."""
        count = self.backlog.drop_oldest(limit, max_bytes)
        self.dropped_count += count
        self.on_change()
        return count

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> ChannelState:
        """Return the state for a checkpoint. Messages in flight are delivered again after a restart."""
        state = self.backlog.state(each.frames for each in self.in_flight_sets())
        if self.backlog.without_in_flight is not None and state.replay is None:
            if self._has_taken:
                state.replay = Replay(())  # it is over, but a message may be there twice
            else:
                self.backlog.without_in_flight = None
        return state

    def restore(self, state: ChannelState, end: int, shift: float) -> None:
        """Restore a state, in a stream that ends at `end`; `shift` is added to due times."""
        self.backlog.restore(state, end, shift)
        self._schedule.at(self.backlog.deferred.next_due(), self)
        self.wake()

    def frames(self) -> Iterator[bytes]:
        """Yield the frames in memory that were taken from the stream."""
        yield from self.backlog.frames()
        for in_flight in self.in_flight_sets():
            yield from in_flight.frames.values()

    # --- Inside -------------------------------------------------------------------------------------------------------

    @property
    def _has_taken(self) -> bool:
        """Whether it has messages that were taken from the stream: in flight, returned or deferred."""
        return len(self.backlog) > len(self._cursor) or bool(self.deferred_count or self.in_flight_count)

    def _expire(self, in_flight: InFlight, now: float, limit: int, consumer: Consumer | None = None) -> int:
        """Requeue about `limit` timed-out messages at most; returns how many. Without a consumer, it has left."""
        expired = in_flight.expire(now, limit) if limit > 0 else ()
        if expired:
            self.timeout_count += len(expired)
            if consumer is not None:
                self.returns.note(map(id_of, expired), TIMED_OUT, now, consumer.client)
            else:
                self.returns.note_timeouts_of_departed(map(id_of, expired), now)
            self.on_change()
            self.put_back(next_attempts(self._without_dead_letters(expired)), now)
        return len(expired)

    def _release_deferred(self, now: float) -> float:
        """Release some of the due messages, as far as there is room in memory; returns when to continue."""
        due = self.backlog.deferred.next_due()
        if due > now:
            return due
        if now < self._deferred_retry.until < NEVER:
            return self._deferred_retry.until
        room = self.backlog.room
        if room <= 0:
            self.backlog.on_room = lambda: self._schedule.at(AT_ONCE, self)
            return NEVER
        self.backlog.on_room = None
        try:
            released = self.backlog.deferred.release(now, min(room, MAX_BATCH))
            again = released if self.backlog.without_in_flight is None else self.without_in_flight(released, now)
            self._put_back(again)
        except BlockingIOError:
            return now
        except OSError as error:
            if self._deferred_retry.failed(now):
                log.warning("CHANNEL(%s): cannot read deferred messages, trying again - %s", self.name, error)
            return self._deferred_retry.until
        following = self.backlog.deferred.next_due()
        return now if following <= now else max(following, now + _RELEASE_SECONDS)

    def _forget_all(self) -> None:
        self.backlog.empty()
        for in_flight in self.in_flight_sets():
            in_flight.clear()

    def wake(self) -> None:
        """Wake consumers if there are messages for them."""
        if not self.paused and not self._log_retry.is_waiting:
            self._wait_queue.wake(len(self.backlog))

    def _drop(self, count: int) -> None:
        if count and not self.dropped_count:
            log.warning(
                "CHANNEL(%s): more than %d messages wait, dropping further ones (see dropped_count in /stats)",
                self.name, self._hooks.limits.mem_queue_size,
            )  # fmt: skip
        self.dropped_count += count

    def _without_expired(self, frames: Sequence[bytes], now: float) -> Sequence[bytes]:
        """Return the frames that have not expired. The others are finished or, by a policy, dead-lettered."""
        now_ns = int((now + self._hooks.clock_offset()) * _NS_PER_SECOND)
        expired = [frame for frame in frames if 0 < expires_ns(frame) <= now_ns]
        if not expired:
            return frames
        gone = frozenset(map(id_of, expired))
        if self.dead_letters is not None and (left := self.dead_letters.enqueue_expired(expired)):
            self.defer_again(left, now + _FULL_SECONDS)
            expired = expired[: len(expired) - len(left)]
        before = self.expired_count
        self.expired_count += len(expired)
        if self.expired_count.bit_length() > before.bit_length():  # a line each time that the number has doubled
            log.warning(
                "CHANNEL(%s:%s): messages have expired, %d since the start of nsqd (see expired_count in /stats)",
                self.topic_name, self.name, self.expired_count,
            )  # fmt: skip
        self.on_change()
        return [frame for frame in frames if id_of(frame) not in gone]

    def _without_dead_letters(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Return the frames to be delivered again. The dead-letter queue keeps the others."""
        return frames if self.dead_letters is None else self.dead_letters.enqueue_exhausted(frames)

    def in_flight_sets(self) -> list[InFlight]:
        """Return those of its consumers, of consumers that left, and of the dead-letter queue."""
        return [*(consumer.in_flight for consumer in self.consumers), self.departed, *self._dying()]

    def _dying(self) -> tuple[InFlight, ...]:
        return () if self.dead_letters is None else (self.dead_letters.in_flight,)
