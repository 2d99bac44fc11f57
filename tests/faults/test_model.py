"""F19: the real broker, topics, channels and logs on a fake clock and a disk in memory, compared with a small model.

The rules are the events in the life of a daemon: messages come and go, the disk is full, checkpoints are written, the
process is killed, the power is cut, the clock jumps, the daemon stops and starts with another memory size or level.

There are two models of each topic: `live` is the state that the daemon must have now, `durable` the state that it must
have if it ended now. Logged events change both, REQ delays among them. Other answers of consumers change `live` alone,
until a checkpoint makes a copy of it durable. So after a crash everything has to be exactly as in `durable`: nothing
lost, nothing invented, nothing that was finished before the last checkpoint, no attempt uncounted, nothing deferred
that comes early.

Offsets, rewinds and retention (P9): a `Published` list says which message has which offset. Whatever happens, the log
has these messages at these offsets, from the first one that is retained up to the end.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple, cast

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nsq_compat.log import recovery
from nsq_compat.log.checkpoint import CHECKPOINT, ChannelState, TopicState
from nsq_compat.log.control_log import ControlLog
from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import Files
from nsq_compat.log.kept import Kept
from nsq_compat.log.mirror_copy import MirrorCopy, Steps, catch_up
from nsq_compat.log.mirrored_files import Changes, MirroredFiles
from nsq_compat.log.offsets import OffsetReader, Retention, oldest
from nsq_compat.log.segment import Segment
from nsq_compat.log.storage import Durability, Storage, TopicStore
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode
from nsq_compat.protocol.message import MessageIds
from nsq_compat.protocol.mirror import Change
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.protocol.storage_schema import CHANNEL_MOVED, DEFERRED, REQUEUED, TOPIC_AWAITS_CHANNELS
from nsq_compat.queue import deferred
from nsq_compat.queue.backlog import Cursor
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.publish_ids import PublishIds
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, QueueLimits
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.queue.withdrawal import Withdrawal
from tests.faults.conftest import LONG_ROUNDS
from tests.faults.disk import SECTOR, SimulatedDisk

DATA_PATH = "/data"
SEGMENT_SIZE = 1000
EPHEMERAL = "tail#ephemeral"
MSG_TIMEOUT = 60.0
A_YEAR = 31_536_000.0
PLENTY = 1000
KEEPS_ALL = Retention(100 * A_YEAR, None)
AFTER_RETRIES = 7
"""Seconds: more than the longest pause between two attempts to read."""

Body = bytes


class Disk(SimulatedDisk):
    """A disk that can be full, or unreadable. A write to a full disk writes half of its data, in whole sectors."""

    full = False
    unreadable = False

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if not self.full:
            return super().pwrite(fd, data, offset)
        half = (offset + len(data) // 2) // SECTOR * SECTOR
        if half > offset:
            super().pwrite(fd, data[: half - offset], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Client:
    """A consumer that takes messages when a rule says so."""

    locality = Locality.GLOBAL

    def __init__(self) -> None:
        self.in_flight = InFlight()

    def wake(self) -> None: ...

    def close(self) -> None: ...

    def begin_headers(self) -> None: ...

    @property
    def client(self) -> tuple[str, str]:
        return "c", "1.2.3.4:5"

    def stats(self) -> ClientStats:
        raise AssertionError("no test asks for stats")


# --- The model --------------------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """An unanswered delivery."""

    owner: Client
    attempts: int
    delivered: float
    deadline: float


@dataclass
class Messages:
    """The messages of a channel, or those that a topic holds. Numbers are attempts at the next delivery."""

    waiting: dict[Body, int] = field(default_factory=dict)
    deferred: dict[Body, tuple[float, int]] = field(default_factory=dict)
    in_flight: dict[Body, Sent] = field(default_factory=dict)

    def add(self, bodies: Sequence[Body], due: float | None) -> None:
        if due is None:
            self.waiting.update(dict.fromkeys(bodies, 1))
        else:
            self.deferred.update(dict.fromkeys(bodies, (due, 1)))

    def put_back(self, body: Body, attempts: int, due: float | None) -> None:
        self.waiting.pop(body, None)
        self.deferred.pop(body, None)
        if due is None:
            self.waiting[body] = attempts
        else:
            self.deferred[body] = (due, attempts)

    def add_all(self, other: "Messages") -> None:
        self.waiting |= other.waiting
        self.deferred |= other.deferred

    def serve(self, now: float) -> None:
        for body, sent in list(self.in_flight.items()):
            if sent.deadline <= now:
                self.waiting[body] = self.in_flight.pop(body).attempts + 1
        for body, (due, attempts) in list(self.deferred.items()):
            if due <= now:
                self.waiting[body] = attempts
                del self.deferred[body]

    def copy(self, shift: float) -> "Messages":
        """Return them as they are after a restart."""
        again = {body: sent.attempts + 1 for body, sent in self.in_flight.items()}
        later = {body: (due + shift, attempts) for body, (due, attempts) in self.deferred.items()}
        return Messages(self.waiting | again, later)


@dataclass
class Model:
    """One topic."""

    paused: bool = False
    awaits_channels: bool = False
    held: Messages = field(default_factory=Messages)
    channels: dict[str, Messages] = field(default_factory=dict)

    @property
    def lasting(self) -> list[str]:
        """The channels that are not ephemeral."""
        return [name for name in self.channels if not is_ephemeral(name)]

    @property
    def holding(self) -> bool:
        return self.paused or self.awaits_channels or not self.channels

    def publish(self, bodies: Sequence[Body], due: float | None) -> None:
        for each in [self.held] if self.holding else self.channels.values():
            each.add(bodies, due)

    def create(self, name: str) -> None:
        self.channels[name] = Messages()
        self._hand_over()

    def hold(self, **changes: bool) -> None:
        """Change `paused` or `awaits_channels`."""
        vars(self).update(changes)
        self._hand_over()

    def empty(self) -> None:
        self.held = Messages()

    def empty_channel(self, name: str) -> None:
        self.channels[name] = Messages()

    def copy(self, shift: float) -> "Model":
        """Return a copy; `shift` is added to due times."""
        channels = {name: each.copy(shift) for name, each in self.channels.items()}
        return Model(self.paused, self.awaits_channels, self.held.copy(shift), channels)

    def after_end(self, shift: float) -> "Model":
        """Return it as it is after a restart."""
        found = self.copy(shift)
        found.channels = {name: found.channels[name] for name in self.lasting}
        return found

    def _hand_over(self) -> None:
        if not self.holding:
            for each in self.channels.values():
                each.add_all(self.held)
            self.held = Messages()


class Published(NamedTuple):
    """A message at its offset. `due_ns` is 0 if it was not deferred."""

    body: Body
    due_ns: int


@dataclass
class Known:
    """The models of a topic. Due times are monotonic in `live`, wall clock in the others."""

    live: Model
    durable: Model
    published: list[Published] = field(default_factory=list)
    """By offset."""
    read: dict[int, bytes] = field(default_factory=dict)
    """Frames that were read, by offset."""
    first: int = 0
    """The first retained offset when that was checked last."""
    retention: Retention | None = None
    keeps_all: bool = False
    """Whether `retention` has kept everything since `first` was checked."""
    was_in_memory: bool = False
    """Whether messages were published at level memory: then some are in no file, and deferred ones have no offset."""
    was_moved: bool = False
    identities: dict[int, int] = field(default_factory=dict)
    """The publish ids that are known, each with the offset of its message."""
    doubtful: set[int] = field(default_factory=set)
    """Publish ids that may be known: of messages that may have been released before the last start."""
    paused_channels: set[str] = field(default_factory=set)
    saved: TopicState | None = None
    to_be_durable: Model | None = None
    """The state that `saved` makes durable once it is written."""

    @property
    def all(self) -> list[Model]:
        return [self.live, self.durable, *([self.to_be_durable] if self.to_be_durable else [])]


# --- The machine ------------------------------------------------------------------------------------------------------

pick = st.integers(0, 999)
topics = st.sampled_from(["orders", "orders", "orders", "returns"])
channels = st.sampled_from(["archive", "archive", "metrics"])
delays = st.sampled_from([0, 0, 0, 5, 500])
durabilities = st.sampled_from([Durability.OS, Durability.FSYNC, Durability.OS, Durability.FSYNC, Durability.MEMORY])
memories = st.sampled_from([0, 2, 5])

has_channels = precondition(lambda self: any(known.live.lasting for known in self.topics.values()))


class QueueOnDisk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        for folder in (DATA_PATH, our_folder(DATA_PATH)):
            self.disk.mkdir(folder)
            self.disk.fsync_folder(os.path.dirname(folder))
        self.now = 5000.0
        self.wall = 1_700_000_000.0
        self.serial = 0
        self.topics: dict[str, Known] = {}
        self.clients: dict[Channel, dict[int, Client]] = {}
        self.frames: dict[Body, bytes] = {}
        self.ids: dict[Body, bytes] = {}
        self.durability = Durability.OS
        self.broker = Broker(QueueLimits())

    @initialize(durability=durabilities, memory=memories)
    def begin(self, durability: Durability, memory: int) -> None:
        self.start(durability, memory)

    # --- Start and stop -----------------------------------------------------------------------------------------------

    @property
    def offset(self) -> float:
        """Wall clock minus monotonic clock, in seconds."""
        return self.wall - self.now

    @property
    def now_ns(self) -> int:
        return int(self.wall) * 10**9

    def files(self) -> Files:
        return cast("Files", self.disk)

    def open(self, durability: Durability, memory: int) -> None:
        if durability is Durability.FSYNC and self.durability is not Durability.FSYNC:
            self.disk = self.disk.copy()  # by now the system has written all that was not synced at the other level
        self.durability = durability
        self.storage = Storage(
            self.files(),
            DATA_PATH,
            durability=durability,
            segment_size=SEGMENT_SIZE,
            clock_offset=lambda: self.offset,
        )
        self.broker = Broker(QueueLimits(mem_queue_size=memory), self.storage)
        self.clients = {}

    def start(self, durability: Durability, memory: int, knows_metadata: bool = True) -> None:
        """Start a daemon, which must have the state `live`. nsqd.dat may be missing."""
        self.open(durability, memory)
        for name in self.storage.names():
            known = self.topics[name]
            real = self.broker.restore(name, known.live.lasting if knows_metadata else (), self.now, self.now_ns)
            real.retain(known.retention)
            self.recall(real, known)
            known.paused_channels &= set(known.live.lasting if knows_metadata else ())
            for channel in known.paused_channels:
                real.channels[channel].pause()
        assert self.broker.topics.keys() == self.topics.keys()
        self.serve()

    def start_after_crash(self, durability: Durability, memory: int, knows_metadata: bool) -> None:
        if self.durability is Durability.MEMORY:
            self.start_anew(durability, memory, promised=lambda model, channel: set())
            return
        for known in self.topics.values():
            known.live = known.durable.after_end(-self.offset)
            known.durable = known.live.copy(self.offset)
            known.saved = known.to_be_durable = None
        self.start(durability, memory, knows_metadata)

    def start_anew(self, durability: Durability, memory: int, promised: Callable[[Model, str], set[Body]]) -> None:
        """More messages than the model knows may come again, each once to a channel. Then all topics are deleted."""
        self.open(self.durability, memory)
        everything = {b"%d" % number for number in range(self.serial)}
        for name in self.storage.names():
            model = self.topics[name].durable.after_end(0)
            real = self.broker.restore(name, model.lasting, self.now, self.now_ns)
            real.unpause()
            real.learn_channels(["archive"])
            real.channel("archive")
            self.broker.schedule.run(self.now + A_YEAR)
            for channel in real.channels.values():
                client = Client()
                channel.add_consumer(client)
                found = [message.body(frame) for frame in self.everything(channel, client)]
                assert self.topics[name].was_moved or len(set(found)) == len(found)
                assert {body.rstrip(b".") for body in found} <= everything
                assert promised(model, channel.name) <= set(found)
        for name in self.storage.names():
            self.broker.delete_topic(name)
        self.topics = {}
        self.frames = {}
        self.start(durability, memory)

    def everything(self, channel: Channel, client: Client) -> Iterator[bytes]:
        for _ in range(PLENTY):
            frames = channel.take(client, PLENTY, self.now, MSG_TIMEOUT)
            yield from frames
            if not frames:
                if not channel.depth:
                    return
                self.broker.schedule.run(self.now)  # a long read goes on at the next alarm
        raise AssertionError("messages never end")

    def serve(self) -> None:
        self.broker.schedule.run(self.now)
        for known in self.topics.values():
            for each in known.live.channels.values():
                each.serve(self.now)

    # --- Looking things up --------------------------------------------------------------------------------------------

    def topic(self, name: str) -> tuple[Topic, Known]:
        real = self.broker.topic(name)
        if real.publish_ids is None:
            real.publish_ids = self.no_ids(name)
        return real, self.topics.setdefault(name, Known(Model(), Model()))

    def new_channel(self, topic: str, name: str) -> None:
        real, known = self.topic(topic)
        if name not in known.live.channels:
            real.channel(name)
            self.logged(known, lambda model: model.create(name))
            self.serve()

    def channel(self, which: int) -> tuple[Channel, Messages]:
        """One of the channels."""
        there = [(name, channel) for name, known in self.topics.items() for channel in known.live.lasting]
        topic, channel = there[which % len(there)]
        return self.broker.topics[topic].channels[channel], self.topics[topic].live.channels[channel]

    def client(self, channel: Channel, which: int) -> Client:
        clients = self.clients.setdefault(channel, {})
        if which not in clients:
            clients[which] = Client()
            channel.add_consumer(clients[which])
        return clients[which]

    def in_flight(self, channel: Channel, messages: Messages) -> list[tuple[Body, Sent]]:
        """The messages that their consumers can still answer."""
        there = self.clients.get(channel, {}).values()
        return [(body, sent) for body, sent in messages.in_flight.items() if sent.owner in there]

    @staticmethod
    def store(topic: Topic) -> TopicStore:
        assert topic.store is not None
        return topic.store

    def id_of(self, body: Body) -> bytes:
        return message.message_id(self.frames[body])

    # --- Producers ----------------------------------------------------------------------------------------------------

    @rule(topic=topics, count=st.integers(1, 7), size=st.sampled_from([0, 0, 50, 400]), delay=delays)
    def publish(self, topic: str, count: int, size: int, delay: int) -> None:
        real, known = self.topic(topic)
        bodies = self.bodies(count, size)
        real.publish(bodies, self.now, self.now_ns, float(delay))
        self.note_published(known, real, bodies, delay)

    @rule(topic=topics, count=st.integers(1, 7), size=st.sampled_from([0, 400]), delay=delays)
    def publish_to_a_full_disk(self, topic: str, count: int, size: int, delay: int) -> None:
        real, known = self.topic(topic)
        bodies = self.bodies(count, size)
        self.disk.full = True
        try:
            real.publish(bodies, self.now, self.now_ns, float(delay))
        except OSError:
            pass
        else:
            assert self.durability is Durability.MEMORY
            self.note_published(known, real, bodies, delay)
        finally:
            self.disk.full = False

    def bodies(self, count: int, size: int) -> list[Body]:
        self.serial += count
        return [b"%d" % number + b"." * size for number in range(self.serial - count, self.serial)]

    def note_published(self, known: Known, real: Topic, bodies: list[Body], delay: int) -> None:
        last = int(real.frames.ids.last, 16)
        for back, body in enumerate(reversed(bodies)):
            number = ((last >> 22) << 12 | last & 0xFFF) - back  # without the id of the node, which is 0
            self.ids[body] = b"%016x" % ((number >> 12) << 22 | number & 0xFFF)
        for each in known.all:
            clock = self.now if each is known.live else self.wall
            each.publish(bodies, clock + delay if delay else None)
        known.published += [Published(body, self.now_ns + delay * 10**9 if delay else 0) for body in bodies]
        known.was_in_memory |= self.durability is Durability.MEMORY

    @rule(topic=topics, identity=st.integers(0, 9), delay=delays)
    def publish_twice_with_an_id(self, topic: str, identity: int, delay: int) -> None:
        real, known = self.topic(topic)
        for _ in range(2):
            (body,) = self.bodies(1, 0)
            payload = encode([("nsq-id", str(identity))]) + body
            before = real.message_count
            real.publish_with_headers([payload], self.now, self.now_ns, float(delay))
            is_new = real.message_count > before
            if identity not in known.doubtful:
                assert is_new == (identity not in known.identities)
            if is_new:
                known.identities[identity] = len(known.published)
                self.note_published(known, real, [body], delay)
            known.doubtful.discard(identity)
            known.identities.setdefault(identity, -1)

    def no_ids(self, topic: str) -> PublishIds:
        return PublishIds(topic, 100 * A_YEAR, lambda: self.now_ns)

    def recall(self, real: Topic, known: Known) -> None:
        """The ids of all retained messages are known after a start."""
        real.publish_ids = self.no_ids(real.name)
        real.recall_ids(self.now_ns)
        first = oldest(self.store(real).log)
        sure = first is not None and not known.was_in_memory
        for identity, offset in list(known.identities.items()):
            if not sure or first is None or offset < first.offset:
                known.doubtful.add(identity)
                del known.identities[identity]

    # --- Consumers ----------------------------------------------------------------------------------------------------

    @has_channels
    @rule(channel=pick, which=st.integers(0, 1), room=st.sampled_from([1, 2, 4, 100]))
    def take(self, channel: int, which: int, room: int) -> None:
        real, messages = self.channel(channel)
        client = self.client(real, which)
        frames = real.take(client, room, self.now, MSG_TIMEOUT)
        assert len(frames) <= (0 if real.paused else room)
        for frame in frames:
            self.note_delivered(messages, client, frame)

    def note_delivered(self, messages: Messages, client: Client, frame: bytes) -> None:
        body, attempts = message.body(frame), message.attempts(frame)
        assert messages.waiting.pop(body, None) == attempts
        assert message.message_id(self.frames.setdefault(body, frame)) == message.message_id(frame)
        messages.in_flight[body] = Sent(client, attempts, self.now, self.now + MSG_TIMEOUT)

    @has_channels
    @rule(channel=pick, share=st.sampled_from([1, 2, 5]), first=pick)
    def finish(self, channel: int, share: int, first: int) -> None:
        """Finish some messages, or all but some."""
        real, messages = self.channel(channel)
        for number, (body, sent) in enumerate(self.in_flight(real, messages), first):
            if share == 1 or (number % share == 0) == (first % 2):
                assert real.finish(sent.owner, [self.id_of(body)]) == []
                del messages.in_flight[body]

    @has_channels
    @rule(channel=pick, choices=st.sets(pick, min_size=1, max_size=6), delay=delays)
    def requeue(self, channel: int, choices: set[int], delay: int) -> None:
        real, messages = self.channel(channel)
        for body, sent in [each for number, each in enumerate(self.in_flight(real, messages)) if number in choices]:
            real.requeue(sent.owner, self.id_of(body), self.now, float(delay))
            del messages.in_flight[body]
            self.note_requeued(real, body, sent.attempts + 1, delay)

    def note_requeued(self, real: Channel, body: Body, attempts: int, delay: int) -> None:
        known = self.topics[real.topic_name]
        known.live.channels[real.name].put_back(body, attempts, self.now + delay if delay else None)
        if not delay or self.durability is Durability.MEMORY:
            return
        for each in known.all[1:]:
            each.channels[real.name].put_back(body, attempts, self.wall + delay)
        if self.durability is Durability.FSYNC:
            self.store(self.broker.topics[real.topic_name]).commit()  # as the next publish does

    @has_channels
    @rule(channel=pick)
    def requeue_all_for_long(self, channel: int) -> None:
        self.requeue(channel, set(range(PLENTY)), 500)

    @has_channels
    @rule(channel=pick, choice=pick)
    def touch(self, channel: int, choice: int) -> None:
        real, messages = self.channel(channel)
        if mine := self.in_flight(real, messages):
            body, sent = mine[choice % len(mine)]
            real.touch(sent.owner, self.id_of(body), self.now, MSG_TIMEOUT)
            sent.deadline = min(self.now + MSG_TIMEOUT, sent.delivered + self.broker.limits.max_msg_timeout)

    @has_channels
    @rule(channel=pick, which=st.integers(0, 1))
    def consumer_leaves(self, channel: int, which: int) -> None:
        real, _ = self.channel(channel)
        client = self.clients.get(real, {}).pop(which, None)
        if client is not None:
            real.remove_consumer(client)

    @has_channels
    @rule(channel=pick, count=st.integers(10, 40), unfinished=st.integers(0, 3))
    def much_is_published_and_nearly_all_finished(self, channel: int, count: int, unfinished: int) -> None:
        real, messages = self.channel(channel)
        for _ in range(count):
            self.publish(real.topic_name, 1, 0, 0)
        for _ in range(PLENTY if not real.paused else 0):
            before = real.depth
            self.take(channel, 0, 100)
            if real.depth == before:
                break
        for body, sent in self.in_flight(real, messages)[unfinished:]:
            assert real.finish(sent.owner, [self.id_of(body)]) == []
            del messages.in_flight[body]
        self.checkpoint(real.topic_name)

    # --- Operators ----------------------------------------------------------------------------------------------------

    @has_channels
    @rule(
        channel=pick,
        choices=st.sets(pick, min_size=1, max_size=6),
        what=st.sampled_from(["finish", "finish", "requeue"]),
        delay=delays,
        unknown=st.booleans(),
    )
    def an_operator_takes_some_out(self, channel: int, choices: set[int], what: str, delay: int, unknown: bool) -> None:
        """Messages waiting, deferred and in flight are finished or requeued; others are not found."""
        real, messages = self.channel(channel)
        there = [*messages.waiting, *messages.deferred, *messages.in_flight]
        chosen = {self.ids[body]: body for number, body in enumerate(there) if number in choices}
        present = {self.ids[body] for body in there}  # another topic may have the same ids
        others = [*dict.fromkeys(each for each in self.ids.values() if each not in present)][: 3 * unknown]
        search = Withdrawal(real, [*chosen, *others])
        found = []
        while not search.is_done:
            frames = search.step(self.now)
            found += frames
            if what == "requeue" and frames:
                real.requeue_withdrawn(frames, self.now, float(delay))
        assert list(search.missing) == others
        assert sorted(map(message.message_id, found)) == sorted(chosen)
        for frame in found:
            body, attempts = message.body(frame), message.attempts(frame)
            assert body == chosen[message.message_id(frame)]
            if (sent := messages.in_flight.pop(body, None)) is not None:
                assert attempts == sent.attempts + 1
            else:
                assert attempts == (messages.waiting.pop(body, None) or messages.deferred.pop(body)[1])
            if what == "requeue":
                self.note_requeued(real, body, attempts, delay)
        self.serve()

    @has_channels
    @rule(channel=pick, count=st.integers(1, 20))
    def a_peek_shows_what_waits(self, channel: int, count: int) -> None:
        real, messages = self.channel(channel)
        try:
            seen = real.peek(count)
        except BlockingIOError:
            return
        assert {message.body(frame) for frame in seen.waiting} <= messages.waiting.keys()
        assert {message.body(frame) for _, frame in seen.deferred} <= messages.deferred.keys()

    # --- Time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 4, 59, 61, 600]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.wall += seconds
        self.serve()

    @rule(seconds=st.sampled_from([-100_000, -3600, -10, 10, 3600]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.wall += seconds

    # --- What comes, goes, is paused and emptied ----------------------------------------------------------------------

    @rule(topic=topics, channel=channels)
    def create_channel(self, topic: str, channel: str) -> None:
        self.new_channel(topic, channel)

    @rule(topic=topics)
    def an_ephemeral_channel_comes_or_goes(self, topic: str) -> None:
        real, known = self.topic(topic)
        if EPHEMERAL in known.live.channels:
            real.channels[EPHEMERAL].remove_consumer(self.clients.pop(real.channels[EPHEMERAL])[0])
            self.logged(known, lambda model: model.channels.pop(EPHEMERAL, None))
        else:
            self.new_channel(topic, EPHEMERAL)
            self.client(real.channels[EPHEMERAL], 0)

    @has_channels
    @rule(channel=pick, again=st.booleans())
    def delete_channel(self, channel: int, again: bool) -> None:
        real, _ = self.channel(channel)
        self.clients.pop(real, None)
        topic, known = self.topic(real.topic_name)
        topic.delete_channel(real.name)
        known.paused_channels.discard(real.name)
        self.logged(known, lambda model: model.channels.pop(real.name))
        if again:
            self.new_channel(topic.name, real.name)

    @rule(topic=topics, again=st.booleans())
    def delete_topic(self, topic: str, again: bool) -> None:
        if topic in self.topics:
            for channel in self.broker.topics[topic].channels.values():
                self.clients.pop(channel, None)
            self.broker.delete_topic(topic)
            del self.topics[topic]
            if again:
                self.topic(topic)

    @rule(topic=topics)
    def pause_topic(self, topic: str) -> None:
        real, known = self.topic(topic)
        real.pause()
        self.logged(known, lambda model: model.hold(paused=True))

    @rule(topic=topics)
    def unpause_topic(self, topic: str) -> None:
        real, known = self.topic(topic)
        real.unpause()
        self.logged(known, lambda model: model.hold(paused=False))
        self.serve()

    @rule(topic=topics)
    def a_topic_awaits_its_channels(self, topic: str) -> None:
        real, known = self.topic(topic)
        real.await_channels()
        self.store(real).commit()  # as the creator of a topic does last
        self.logged(known, lambda model: model.hold(awaits_channels=True))

    @rule(topic=topics, channels=st.sets(st.sampled_from(["archive", "metrics", EPHEMERAL])))
    def a_topic_learns_its_channels(self, topic: str, channels: set[str]) -> None:
        real, known = self.topic(topic)
        real.learn_channels(sorted(channels))
        for name in sorted(channels - {EPHEMERAL} - known.live.channels.keys()):
            self.logged(known, lambda model, name=name: model.create(name))  # type: ignore[misc]
        self.logged(known, lambda model: model.hold(awaits_channels=False))
        self.serve()

    @rule(topic=topics)
    def empty_topic(self, topic: str) -> None:
        real, known = self.topic(topic)
        real.empty()
        self.logged(known, Model.empty)
        known.first, known.keeps_all = len(known.published), False

    @has_channels
    @rule(channel=pick, count=st.integers(1, 3), emptied=st.booleans())
    def publish_during_a_pause(self, channel: int, count: int, emptied: bool) -> None:
        topic = self.channel(channel)[0].topic_name
        self.pause_topic(topic)
        self.publish(topic, count, 0, 0)
        if emptied:
            self.empty_topic(topic)
        self.unpause_topic(topic)

    @has_channels
    @rule(channel=pick)
    def empty_channel(self, channel: int) -> None:
        real, _ = self.channel(channel)
        topic, known = self.topic(real.topic_name)
        topic.empty_channel(real.name)
        self.logged(known, lambda model: model.empty_channel(real.name))

    @has_channels
    @rule(channel=pick)
    def pause_or_unpause_channel(self, channel: int) -> None:
        real, _ = self.channel(channel)
        (real.unpause if real.paused else real.pause)()
        self.topics[real.topic_name].paused_channels ^= {real.name}

    def logged(self, known: Known, change: Callable[[Model], object]) -> None:
        for each in known.all:
            change(each)

    # --- Offsets, rewinds and retention -------------------------------------------------------------------------------

    @rule(
        topic=topics,
        retention=st.sampled_from([None, KEEPS_ALL, KEEPS_ALL, Retention(60, None), Retention(None, 1500)]),
    )
    def a_policy_retains(self, topic: str, retention: Retention | None) -> None:
        real, known = self.topic(topic)
        real.retain(retention)
        known.keeps_all &= retention == KEEPS_ALL
        known.retention = retention

    @rule(topic=topics)
    def what_is_retained_is_read_again(self, topic: str) -> None:
        """The same messages have the same offsets."""
        real, known = self.topic(topic)
        self.check_offsets(real, known)

    def check_offsets(self, real: Topic, known: Known) -> bool:
        """Returns whether they are known. At level memory they are not."""
        store, end = self.store(real), len(known.published)
        if known.was_in_memory:
            return False
        assert real.next_offset == end, "an offset is used once"
        oldest_message = oldest(store.log)
        first = end if oldest_message is None else oldest_message.offset
        assert first >= known.first
        assert first == known.first or not known.keeps_all
        known.first = first
        known.keeps_all = known.retention == KEEPS_ALL
        reader = OffsetReader(store.log, first)
        found: dict[int, bytes] = {}
        while groups := reader.read():
            for group in groups:
                found.update(enumerate(group.frames, group.offset))
        for offset, frame in found.items():
            assert message.body(frame) == known.published[offset].body
            assert known.read.setdefault(offset, frame) == frame
        assert sorted(found) == list(range(first, end))
        return True

    def place(self, real: Topic, known: Known, back: int) -> int | None:
        """An offset from which on all messages are retained and due, so that all of them come; None if not known."""
        if not self.check_offsets(real, known) or known.live.holding or known.durable.holding:
            return None
        end = len(known.published)
        last_due = [offset for offset, each in enumerate(known.published) if each.due_ns > self.now_ns]
        return max([end - back, known.first, *(offset + 1 for offset in last_due)])

    def comes_again(self, known: Known, channel: str, offset: int) -> None:
        known.was_moved = True
        bodies = [each.body for each in known.published[offset:]]
        self.logged(known, lambda model: model.channels[channel].add(bodies, None))

    @has_channels
    @rule(channel=pick, back=st.integers(0, 40), drops=st.booleans(), taken=st.integers(0, 3))
    def rewind(self, channel: int, back: int, drops: bool, taken: int) -> None:
        """A channel that has nothing is moved back, and takes some at once."""
        real, messages = self.channel(channel)
        topic, known = self.topic(real.topic_name)
        self.much_is_published_and_nearly_all_finished(channel, 3, 0)
        offset = self.place(topic, known, back)
        if offset is None or messages.waiting or messages.deferred or messages.in_flight:
            return
        topic.move_channel(real.name, offset, self.now_ns, drops_taken=drops)
        self.comes_again(known, real.name, offset)
        if taken:
            self.take(channel, 0, taken)

    @rule(topic=topics, name=channels, back=st.integers(0, 40))
    def create_channel_at(self, topic: str, name: str, back: int) -> None:
        real, known = self.topic(topic)
        offset = self.place(real, known, back)
        if offset is None or name in known.live.channels:
            return
        real.create_channel_at(name, offset, self.now_ns)
        self.logged(known, lambda model: model.create(name))
        self.comes_again(known, name, offset)

    # --- Checkpoints, ends and beginnings -----------------------------------------------------------------------------

    @rule(topic=topics)
    def checkpoint(self, topic: str) -> None:
        if topic in self.topics:
            self.begin_checkpoint(topic)
            self.end_checkpoint(topic)

    @rule(topic=topics)
    def begin_checkpoint(self, topic: str) -> None:
        """Begin a checkpoint. Many events may follow before it is written."""
        real, known = self.topic(topic)
        known.saved = real.checkpoint(self.now, self.now_ns)
        known.to_be_durable = known.live.copy(self.offset)

    @rule(topic=topics)
    def end_checkpoint(self, topic: str) -> None:
        real, known = self.topic(topic)
        if known.saved is not None and known.to_be_durable is not None:
            self.write_checkpoint(real, known.saved)
            real.release(known.saved, self.now_ns)
            known.durable, known.saved, known.to_be_durable = known.to_be_durable, None, None

    def write_checkpoint(self, topic: Topic, state: TopicState) -> None:
        store = self.store(topic)
        store.write_checkpoint(state.encode())
        store.adopt_checkpoint()
        store.commit()

    @rule(durability=durabilities, memory=memories, half_written=st.booleans(), knows_metadata=st.booleans())
    def kill(self, durability: Durability, memory: int, half_written: bool, knows_metadata: bool) -> None:
        for name, known in self.topics.items():
            if half_written and known.saved is not None:
                self.store(self.broker.topics[name]).write_checkpoint(known.saved.encode())
        self.disk.kill()
        self.start_after_crash(durability, memory, knows_metadata)

    @has_channels
    @rule(channel=pick, back=st.sampled_from([0, 0, 9]), choices=st.sets(st.integers(0, 5), min_size=1, max_size=3))
    def kill_after_some_are_put_off(self, channel: int, back: int, choices: set[int]) -> None:
        """New messages, or those that a rewind delivers again."""
        if back:
            self.rewind(channel, back, drops=False, taken=0)
        else:
            self.publish(self.channel(channel)[0].topic_name, 3, 0, 0)
        self.take(channel, 0, 4)
        self.requeue(channel, choices, 500)
        self.kill(self.durability, 0, half_written=False, knows_metadata=True)

    @precondition(lambda self: self.durability is Durability.FSYNC)
    @rule(durability=durabilities, memory=memories, seed=pick, uptime=st.sampled_from([1, 100, 10_000]))
    def power_cut(self, durability: Durability, memory: int, seed: int, uptime: int) -> None:
        self.disk = self.disk.power_cut(Random(seed))
        for known in self.topics.values():
            known.first, known.keeps_all = 0, False  # deleted segments may be back
        self.now = float(uptime)
        self.start_after_crash(durability, memory, knows_metadata=False)

    @precondition(lambda self: self.durability is not Durability.MEMORY)
    @rule(durability=durabilities, memory=memories, garbage=st.booleans())
    def kill_and_damage_all_checkpoints(self, durability: Durability, memory: int, garbage: bool) -> None:
        """All messages in the logs come again, and none is lost."""
        for real in self.broker.topics.values():
            folder = self.store(real).log.folder
            if garbage:
                self.disk.put(f"{folder}/{CHECKPOINT}", b"garbage")
            elif CHECKPOINT in self.disk.listdir(folder):
                self.disk.unlink(f"{folder}/{CHECKPOINT}")
        self.disk.kill()
        self.start_anew(durability, memory, promised=_what_must_come)

    @precondition(lambda self: self.durability is Durability.MEMORY)
    @has_channels
    @rule(channel=pick, memory=memories, garbage=st.booleans())
    def level_memory_ends_and_all_checkpoints_are_damaged(self, channel: int, memory: int, garbage: bool) -> None:
        """The log of that level restores as much as one of another level."""
        self.publish_during_a_pause(channel, 1, emptied=True)
        self.stop_and_start(Durability.OS, memory, orderly=True)
        self.kill_and_damage_all_checkpoints(Durability.OS, memory, garbage)

    @rule(durability=durabilities, memory=memories, orderly=st.booleans())
    def stop_and_start(self, durability: Durability, memory: int, orderly: bool) -> None:
        self.stop(orderly)
        self.start(durability, memory)

    def stop(self, orderly: bool) -> None:
        for channel, clients in self.clients.items():
            for client in clients.values() if orderly else ():
                channel.remove_consumer(client)
        self.broker.close()
        for name, real in self.broker.topics.items():
            known = self.topics[name]
            real.flush()
            self.store(real).commit()
            self.write_checkpoint(real, real.checkpoint(self.now, self.now_ns))
            self.store(real).log.close()
            known.durable = known.live.after_end(self.offset)
            known.live = known.durable.copy(-self.offset)
            known.saved = known.to_be_durable = None

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_where_it_must_be(self) -> None:
        for name, known in self.topics.items():
            real, model = self.broker.topics[name], known.live
            assert (real.paused, real.awaits_channels) == (model.paused, model.awaits_channels)
            assert real.channels.keys() == model.channels.keys()
            assert real.depth == len(model.held.waiting) + len(model.held.deferred)
            assert self.store(real).log.damage.records == 0
            for each in model.lasting:
                channel, messages = real.channels[each], model.channels[each]
                assert channel.depth == len(messages.waiting)
                assert channel.deferred_count == len(messages.deferred)
                assert channel.in_flight_count == len(messages.in_flight)

    def teardown(self) -> None:
        """Every channel delivers all messages. When all are finished none is left, not even after a crash."""
        for name in list(self.topics):
            self.unpause_topic(name)
            self.a_topic_learns_its_channels(name, {"archive"})
        self.now += A_YEAR
        self.serve()
        for name, known in self.topics.items():
            ids: dict[int, bytes] = {}
            for channel in known.live.lasting:
                self.drain(self.broker.topics[name].channels[channel], known.live.channels[channel], ids)
            assert sorted(ids.values()) == [ids[number] for number in sorted(ids)]
            self.checkpoint(name)
        self.everything_is_where_it_must_be()
        if self.durability is not Durability.MEMORY:
            self.kill(Durability.OS, 5, half_written=False, knows_metadata=False)
            self.everything_is_where_it_must_be()

    def drain(self, channel: Channel, messages: Messages, ids: dict[int, bytes]) -> None:
        channel.unpause()
        for other in list(self.clients.get(channel, {}).values()):
            channel.remove_consumer(other)
        client = Client()
        channel.add_consumer(client)
        for frame in self.everything(channel, client):
            self.note_delivered(messages, client, frame)
            ids[int(message.body(frame).rstrip(b"."))] = message.message_id(frame)
        assert not messages.waiting
        assert channel.finish(client, [self.id_of(body) for body in messages.in_flight]) == []
        messages.in_flight.clear()


def _what_must_come(model: Model, channel: str) -> set[Body]:
    """Return the messages that must come to a channel, after it was created and the topic unpaused."""
    own = model.channels.get(channel, Messages())
    from_topic = model.held if channel in model.channels or not model.channels else Messages()
    return {*own.waiting, *own.deferred, *from_topic.waiting, *from_topic.deferred}


class QueueInMemory(QueueOnDisk):
    """At level memory, at which messages survive only a clean stop."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(deferred, "_LOCATED_AT_ONCE", 2)  # without effect in compiled code

    def open(self, durability: Durability, memory: int) -> None:
        super().open(Durability.MEMORY, memory)

    def teardown(self) -> None:
        self.patch.undo()
        super().teardown()

    def kill(self, *args: object, **kwargs: object) -> None:
        """No rule here."""

    def level_memory_ends_and_all_checkpoints_are_damaged(self, *args: object, **kwargs: object) -> None:
        """No rule here."""

    @has_channels
    @rule(channel=pick, count=st.integers(1, 4))
    def many_are_put_off_one_by_one(self, channel: int, count: int) -> None:
        for _ in range(count):
            self.publish(self.channel(channel)[0].topic_name, 1, 0, 0)
            self.take(channel, 0, 1)
            self.requeue_all_for_long(channel)

    @has_channels
    @rule(channel=pick, count=st.integers(3, 8))
    def many_are_put_off_while_a_checkpoint_is_written(self, channel: int, count: int) -> None:
        topic = self.channel(channel)[0].topic_name
        self.begin_checkpoint(topic)
        self.many_are_put_off_one_by_one(channel, count)
        self.end_checkpoint(topic)


class QueueOnDiskThatFailsReads(QueueOnDisk):
    """A read error loses no message and skips none."""

    @has_channels
    @rule(channel=pick, which=st.integers(0, 1), room=st.sampled_from([1, 2, 4, 100]))
    def take_while_reads_fail(self, channel: int, which: int, room: int) -> None:
        self.disk.unreadable = True
        self.take(channel, which, room)
        self.everything_is_where_it_must_be()
        self.disk.unreadable = False
        self.time_passes(AFTER_RETRIES)

    @rule(seconds=st.sampled_from([1, 61, 600]))
    def time_passes_while_reads_fail(self, seconds: int) -> None:
        """Due messages that cannot be read come when reads work again."""
        self.disk.unreadable = True
        self.now += seconds
        self.wall += seconds
        self.broker.schedule.run(self.now)
        self.disk.unreadable = False
        self.time_passes(AFTER_RETRIES)


class QueueWithStandby(QueueOnDisk):
    """A standby follows, and takes over. It has what the primary's own disk would have after a kill."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.copied: Steps | None = None  # unless the standby is in sync
        self.step: bytes | list[Change] = b""
        self.new_standby()
        super().__init__()

    def new_standby(self) -> None:
        self.changes.equal.clear()
        self.copy_disk = Disk()
        for folder in (DATA_PATH, our_folder(DATA_PATH)):
            self.copy_disk.mkdir(folder)
        self.copy = MirrorCopy(cast("Files", self.copy_disk), DATA_PATH, syncs=True)

    def files(self) -> Files:
        self.changes.forget()
        self.changes.equal.clear()
        self.mirrored = MirroredFiles(cast("Files", self.disk), DATA_PATH, self.changes)
        self.connect()
        return self.mirrored

    def connect(self) -> None:
        self.copied = catch_up(self.mirrored, DATA_PATH, self.changes)
        self.step = next(self.copied)

    @rule(lost=st.booleans())
    def the_connection_is_lost(self, lost: bool) -> None:
        self.changes.forget()
        if lost:
            self.new_standby()
        self.connect()

    @rule(steps=st.integers(1, 20), sends=st.booleans())
    def the_standby_follows(self, steps: int, sends: bool) -> None:
        """Some changes arrive, and a part of the copy."""
        if sends:
            self.copy.apply(self.changes.take(500))
        for _ in range(steps if self.copied is not None else 0):
            self.copy_step()

    def copy_step(self) -> None:
        if self.copied is None:
            return
        # As one connection does it: a command comes after the changes before it.
        if isinstance(self.step, list):
            self.send_all()
        try:
            self.step = self.copied.send(self.answer(self.step))
        except StopIteration:
            self.copied = None

    def answer(self, step: bytes | list[Change]) -> bytes:
        if isinstance(step, list):
            self.copy.apply(step)
            return b""
        line = step.partition(b"\n")[0]
        if line == b"MIRROR files":
            return json.dumps(self.copy.units()).encode()
        assert line.startswith(b"MIRROR sums ")
        return json.dumps(self.copy.sums(line[12:].decode())).encode()

    def send_all(self) -> None:
        while changes := self.changes.take(1000):
            self.copy.apply(changes)

    @rule(durability=durabilities, memory=memories, knows_metadata=st.booleans())
    def the_standby_takes_over(self, durability: Durability, memory: int, knows_metadata: bool) -> None:
        while self.copied is not None:
            self.copy_step()
        self.send_all()
        self.copy.close()
        self.disk = self.copy_disk.copy()  # a standby at level fsync has synced what it acknowledges
        self.new_standby()
        self.start_after_crash(durability, memory, knows_metadata)


class QueueAtFsync(QueueOnDisk):
    """At level fsync, where every crash is a power cut. Counts the events of all runs together."""

    power_cuts = 0
    published = 0

    def open(self, durability: Durability, memory: int) -> None:
        super().open(Durability.FSYNC, memory)

    def kill(self, *args: object, **kwargs: object) -> None:
        """No rule here."""

    def start_after_crash(self, durability: Durability, memory: int, knows_metadata: bool) -> None:
        QueueAtFsync.power_cuts += 1
        super().start_after_crash(durability, memory, knows_metadata)

    def teardown(self) -> None:
        super().teardown()
        QueueAtFsync.published += self.serial


for each in (QueueOnDisk, QueueOnDiskThatFailsReads, QueueInMemory, QueueWithStandby):
    each.TestCase.settings = settings(stateful_step_count=60)
TestQueueOnDisk = QueueOnDisk.TestCase
TestQueueOnDiskThatFailsReads = QueueOnDiskThatFailsReads.TestCase
TestQueueInMemory = QueueInMemory.TestCase
TestQueueWithStandby = QueueWithStandby.TestCase


@pytest.mark.long
@pytest.mark.timeout(0)
def test_what_was_acknowledged_survives_many_power_cuts(seed: int) -> None:
    QueueAtFsync.power_cuts = QueueAtFsync.published = 0  # the mutants run it too
    searching = settings(max_examples=LONG_ROUNDS, stateful_step_count=100, database=None)
    run_state_machine_as_test(hypothesis.seed(seed)(QueueAtFsync), settings=searching)
    print(f"{QueueAtFsync.power_cuts} power cuts, {QueueAtFsync.published} messages published")
    assert QueueAtFsync.power_cuts >= LONG_ROUNDS


# --- It can fail ------------------------------------------------------------------------------------------------------


def _loses_one_of_many(take: Callable[..., Sequence[bytes]], *arguments: Any) -> Sequence[bytes]:
    frames = take(*arguments)
    return frames[1:] if len(frames) > 3 else frames


def _reads_zeros(pread: Callable[..., bytes], segment: Segment, size: int, offset: int) -> bytes:
    try:
        return pread(segment, size, offset)
    except OSError:
        return bytes(size)


def _without_protection(original: Any, kept: Kept, frames: Any, **named: Any) -> Any:
    return original(kept, frames)


def _nothing(*_: Any) -> None:
    pass


Mutant = tuple[type[QueueOnDisk], object, str, Callable[..., Any]]
MUTANTS: dict[str, Mutant] = {
    "a start that reads no publish ids": (QueueOnDisk, PublishIds, "recall", lambda *_: 0),
    "a place that skips a message": (QueueOnDisk, Cursor, "take", _loses_one_of_many),
    "a log that is deleted too early": (
        QueueOnDisk,
        TopicLog,
        "release",
        lambda release, log, seq, *rest, **options: release(log, seq + 10, *rest, **options),
    ),
    "a log that copies nothing forward": (
        QueueOnDisk,
        TopicLog,
        "release",
        lambda release, log, seq, unfinished, *rest: release(log, seq, lambda: (), *rest),
    ),
    "a checkpoint without what is in flight": (
        QueueOnDisk,
        Channel,
        "state",
        lambda state, channel: ChannelState(state(channel).position),
    ),
    "due times of another clock": (
        QueueOnDisk,
        Deferred,
        "restore",
        lambda restore, deferred, keys, shift: restore(deferred, keys, 0.0),
    ),
    "a pause that forgets channels that are behind": (
        QueueInMemory,
        Topic,
        "_first_needed",
        lambda first, topic: topic.backlog.cursor.position if topic.is_holding else first(topic),
    ),
    "deferred frames that are nowhere": (QueueInMemory, TopicStore, "locate", lambda *_: {}),
    "what was emptied comes back": (QueueOnDisk, Cursor, "pass_over", _nothing),
    "an OK before the disk has it": (QueueAtFsync, TopicStore, "commit", _nothing),
    "a pause or an end before the disk has it": (QueueAtFsync, ControlLog, "commit", _nothing),
    "a topic's end before the disk has it": (
        QueueAtFsync,
        TopicLog,
        "delete",
        lambda delete, log, durably: delete(log),
    ),
    "a checkpoint before the disk has its name": (QueueAtFsync, TopicLog, "note_new_name", _nothing),
    "what a topic dropped is there again": (
        QueueOnDisk,
        TopicState,
        "encode",
        lambda encode, state: encode(replace(state, emptied_at=0)),
    ),
    "ids that begin again": (QueueOnDisk, MessageIds, "start_after", _nothing),
    "a clean stop that writes nothing": (QueueInMemory, TopicStore, "flush", _nothing),
    "a checkpoint that lets go of later messages": (QueueInMemory, Kept, "add", _without_protection),
    "a read error that reads as zeros": (QueueOnDiskThatFailsReads, Segment, "pread", _reads_zeros),
}
"""What each mutant replaces, in which machine. The replacement gets the original as its first argument."""


def find_a_failure(machine: type[QueueOnDisk]) -> None:
    """Search without shrinking, in short searches, of which any may be unlucky. Fails if there is none."""
    searching = settings(max_examples=100, stateful_step_count=60, database=None, phases=[Phase.generate])

    def search() -> None:
        for seed in range(40):
            run_state_machine_as_test(hypothesis.seed(seed)(type("Searched", (machine,), {})), settings=searching)

    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        search()


@pytest.mark.interpreted
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, owner, attribute, mutant = MUTANTS[name]
    original = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, lambda *arguments, **named: mutant(original, *arguments, **named))
    find_a_failure(machine)


FORGOTTEN = {
    "deferred messages": DEFERRED,
    "delays of requeues": REQUEUED,
    "a wait for channels": TOPIC_AWAITS_CHANNELS,
    "a rewind": CHANNEL_MOVED,
}


@pytest.mark.parametrize("kind", FORGOTTEN.values(), ids=FORGOTTEN)
def test_the_machine_finds_a_recovery_that_forgets(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recovery._REPLAY, kind, _nothing)
    find_a_failure(QueueOnDisk)
