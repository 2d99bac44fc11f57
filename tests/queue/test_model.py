"""Conservation: the real broker, topics, channels and consumers on a fake clock, against a model that knows where
every message has to be.

The model keeps, per channel, one place for each message that is alive: waiting, deferred until a time, or in flight at
a consumer until a deadline, each with the attempt number. It leaves the order of consumers and the sizes of batches to
the queue, and checks what the queue does.

The event loop is played by `ask` (a woken consumer asks, as a connection flushes) and by `timer` (the schedule runs
when it said it wants to, never at another time).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode
from nsq_compat.queue.broker import Broker, snapshot
from nsq_compat.queue.channel import NOT_IN_FLIGHT, NOT_OWNER, Channel, NotInFlight
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.publish_ids import PublishIds
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, QueueLimits
from nsq_compat.queue.wait_queue import Locality

# Most happens in one place, because what matters is what meets there.
TOPICS = ("orders", "orders", "orders", "live#ephemeral")
CHANNELS = ("archive", "archive", "archive", "metrics", "tail#ephemeral")
MEM_QUEUE_SIZE = 12
MAX_MSG_TIMEOUT = 25.0
WINDOW = 20.0
PLENTY = 1000

Body = bytes


class Client:
    """A consumer as a connection drives it. `awake` is true while it owes the channel a question."""

    def __init__(self, channel: Channel, timeout: float, ready: int, locality: Locality) -> None:
        self.channel = channel
        self.locality = locality
        self.timeout = timeout
        self.ready = ready
        self.in_flight = InFlight()
        self.awake = True  # a connection asks after every read, and it has just read a SUB
        self.closed = False

    def wake(self) -> None:
        self.awake = True

    def close(self) -> None:
        self.closed = True

    def begin_headers(self) -> None:
        pass

    @property
    def client(self) -> tuple[str, str]:
        return "c", "1.2.3.4:5"

    def stats(self) -> ClientStats:
        raise AssertionError("no test asks for stats")

    @property
    def room(self) -> int:
        return max(0, self.ready - len(self.in_flight))


@dataclass
class Sent:
    """A delivery that was not answered yet."""

    owner: Client
    attempts: int
    delivered: float
    deadline: float


@dataclass
class ModelChannel:
    """Where the messages of one channel are; waiting and deferred by body, with the attempt they wait for."""

    real: Channel
    paused: bool = False
    waiting: dict[Body, int] = field(default_factory=dict)
    fresh: set[Body] = field(default_factory=set)  # those that wait and came straight from the topic
    deferred: dict[Body, tuple[float, int]] = field(default_factory=dict)
    in_flight: dict[Body, Sent] = field(default_factory=dict)
    put: int = 0
    finished: int = 0
    dropped: int = 0
    emptied: int = 0
    requeued: int = 0
    timed_out: int = 0
    newest: int = -1  # the last message that came straight from a publisher and was delivered

    def accept(self, bodies: list[Body]) -> None:
        self.put += len(bodies)
        room = max(0, MEM_QUEUE_SIZE - len(self.fresh))
        self.waiting.update(dict.fromkeys(bodies[:room], 1))
        self.fresh.update(bodies[:room])
        self.dropped += len(bodies[room:])

    def defer(self, body: Body, due: float) -> None:
        self.put += 1
        if len(self.deferred) < MEM_QUEUE_SIZE:
            self.deferred[body] = (due, 1)
        else:
            self.dropped += 1

    def empty(self) -> None:
        self.emptied += self.alive
        self.waiting.clear()
        self.fresh.clear()
        self.deferred.clear()
        self.in_flight.clear()

    def serve(self, now: float) -> None:
        for body, sent in list(self.in_flight.items()):
            if sent.deadline <= now:
                del self.in_flight[body]
                self.timed_out += 1
                self.waiting[body] = sent.attempts + 1
        for body, (due, attempts) in list(self.deferred.items()):
            if due <= now:
                del self.deferred[body]
                self.waiting[body] = attempts

    def next_event(self) -> float:
        dues = [due for due, _ in self.deferred.values()]
        return min([*dues, *(sent.deadline for sent in self.in_flight.values())], default=NEVER)

    @property
    def alive(self) -> int:
        return len(self.waiting) + len(self.deferred) + len(self.in_flight)


@dataclass
class ModelTopic:
    """What no channel has got yet, and the channels."""

    real: Topic
    paused: bool = False
    waiting: list[Body] = field(default_factory=list)
    deferred: list[tuple[float, Body]] = field(default_factory=list)
    channels: dict[str, ModelChannel] = field(default_factory=dict)
    published: int = 0
    dropped: int = 0
    identities: dict[int, float] = field(default_factory=dict)
    """When a message with this publish id was published."""
    duplicates: int = 0

    def publish(self, bodies: list[Body], due: float | None) -> None:
        self.published += len(bodies)
        deferred = [] if due is None else [(due, body) for body in bodies]
        at_once = bodies if due is None else []
        if self.paused or not self.channels:
            room = max(0, MEM_QUEUE_SIZE - len(self.waiting))
            self.waiting += at_once[:room]
            self.dropped += len(at_once[room:])
            room = max(0, MEM_QUEUE_SIZE - len(self.deferred))
            self.deferred += deferred[:room]
            self.dropped += len(deferred[room:])
        else:
            self._hand_out(at_once, deferred)

    def fan_out(self) -> None:
        if self.channels and not self.paused:
            self._hand_out(self.waiting, sorted(self.deferred, key=lambda each: each[0]))
            self.waiting, self.deferred = [], []

    def _hand_out(self, bodies: list[Body], deferred: list[tuple[float, Body]]) -> None:
        for channel in self.channels.values():
            channel.accept(bodies)
            for due, body in deferred:
                channel.defer(body, due)


pick = st.integers(0, 999)
topic_names = st.sampled_from(TOPICS)
channel_names = st.sampled_from(CHANNELS)
delays = st.sampled_from([0.0, 0.0, 3.0, 20.0])


def refusal(answer: Callable[[Client, bytes, float, float], None], *args: Any) -> str | None:
    """Why an answer was not taken, None if it was."""
    try:
        answer(*args)
    except NotInFlight as reason:
        return str(reason)
    return None


class QueueKeepsEveryMessage(RuleBasedStateMachine):
    topology_aware = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.timer = NEVER
        self.serial = 0
        self.broker = Broker(
            QueueLimits(
                mem_queue_size=MEM_QUEUE_SIZE, max_msg_timeout=MAX_MSG_TIMEOUT, topology_aware=self.topology_aware
            )
        )
        self.broker.schedule.wake_at = self.set_timer
        self.topics: dict[str, ModelTopic] = {}
        self.clients: list[Client] = []
        self.models: dict[Channel, ModelChannel] = {}
        self.published_at: dict[Body, int] = {}
        self.frames: dict[Body, bytes] = {}  # as they were delivered first, by whichever channel
        for ready, locality in ((1, Locality.ZONE_LOCAL), (5, Locality.GLOBAL)):
            self.subscribe("orders", "archive", 10.0, ready, locality)
        self.settle()

    @property
    def wall_ns(self) -> int:
        return int(self.now * 1e9)

    # --- What the world around the queue does -------------------------------------------------------------------------

    def set_timer(self, when: float) -> None:
        self.timer = min(self.timer, when)

    def run_until(self, end: float) -> None:
        while self.timer <= end:
            self.now = max(self.now, self.timer)
            self.timer = NEVER
            self.set_timer(self.broker.schedule.run(self.now))
            for channel in self.models.values():
                channel.serve(self.now)
        self.now = end

    def ask(self, client: Client) -> None:
        """One turn of a connection that was woken."""
        client.awake = False
        real, model, room = client.channel, self.models[client.channel], client.room
        if not room:
            real.leave_wait_queue(client)
            return
        frames = real.take(client, room, self.now, client.timeout)
        assert len(frames) <= room
        assert not (frames and model.paused)
        for frame in frames:
            self.deliver(model, client, frame)
        client.awake = 0 < len(frames) < room and real.depth > 0 and not real.paused

    def deliver(self, model: ModelChannel, client: Client, frame: bytes) -> None:
        body, attempts = message.body(frame), message.attempts(frame)
        assert attempts == model.waiting.pop(body)
        # What was deferred or came back may be a copy; of the others all channels have the same one.
        first = self.frames.setdefault(body, frame)
        assert message.timestamp_ns(frame) == self.published_at[body]
        assert message.message_id(frame) == message.message_id(first)
        if body in model.fresh:
            model.fresh.remove(body)
            assert frame is first, "a first delivery copies nothing, whatever other channels do with theirs"
            assert int(body) > model.newest
            model.newest = int(body)
        model.in_flight[body] = Sent(client, attempts, self.now, self.now + client.timeout)

    def settle(self) -> None:
        """Every connection has its turn until all sleep."""
        for _ in range(PLENTY):
            awake = [client for client in self.clients if client.awake]
            if not awake:
                return
            for client in awake:
                self.ask(client)
        raise AssertionError("consumers wake one another without end")

    def bury(self) -> None:
        """Close the connections of deleted channels, as nsqd does."""
        for client in [client for client in self.clients if client.closed]:
            self.leave(client)

    def leave(self, client: Client) -> None:
        self.clients.remove(client)
        client.channel.remove_consumer(client)

    def forget(self, topic: ModelTopic, name: str) -> None:
        del self.models[topic.channels.pop(name).real]
        if topic.real.ephemeral and not topic.channels:
            del self.topics[topic.real.name]

    def topic(self, name: str) -> ModelTopic:
        if name not in self.topics:
            self.topics[name] = ModelTopic(self.broker.topic(name))
            self.topics[name].real.publish_ids = PublishIds(name, WINDOW, lambda: self.wall_ns)
        return self.topics[name]

    def channel(self, topic_name: str, name: str) -> ModelChannel:
        topic = self.topic(topic_name)
        if name not in topic.channels:
            model = ModelChannel(topic.real.channel(name))
            topic.channels[name] = self.models[model.real] = model
            topic.fan_out()
        return topic.channels[name]

    def a_client(self, choice: int) -> Client:
        return self.clients[choice % len(self.clients)]

    def a_message(self, client: Client, choice: int) -> Body:
        """Mostly one that is in flight, at this consumer or at another; else one that came back, or none at all."""
        model = self.models[client.channel]
        own = [body for body, sent in model.in_flight.items() if sent.owner is client]
        bodies = [*own, *model.in_flight, *(body for body in model.waiting if body in self.frames), b"none"]
        return bodies[choice % len(bodies)]

    def id_of(self, body: Body) -> bytes:
        return message.message_id(self.frames[body]) if body in self.frames else b"f" * 16

    def reason_not_in_flight(self, model: ModelChannel, client: Client, body: Body) -> str | None:
        if body not in model.in_flight:
            return NOT_IN_FLIGHT
        return None if model.in_flight[body].owner is client else NOT_OWNER

    # --- What clients do ----------------------------------------------------------------------------------------------

    @rule(topic=topic_names, count=st.integers(1, 6), delay=delays, now_ns=st.integers(0, 1 << 62))
    def publish(self, topic: str, count: int, delay: float, now_ns: int) -> None:
        bodies = [b"%d" % (self.serial + number) for number in range(count)]
        self.serial += count
        self.published_at.update(dict.fromkeys(bodies, now_ns))
        model = self.topic(topic)
        asleep = [client for client in self.clients if not client.awake]
        model.real.publish(bodies, self.now, now_ns, delay)
        model.publish(bodies, self.now + delay if delay else None)
        for channel in model.channels.values():
            assert sum(client.awake for client in asleep if client.channel is channel.real) <= count

    @rule(topic=topic_names, identities=st.lists(st.integers(0, 5), min_size=1, max_size=6), delay=delays)
    def publish_with_ids(self, topic: str, identities: list[int], delay: float) -> None:
        """Those that were published within the window, or come before in the batch, are left out."""
        model = self.topic(topic)
        payloads, fresh = [], []
        for identity in identities:
            body = b"%d" % self.serial
            self.serial += 1
            payloads.append(encode([("nsq-id", str(identity))]) + body)
            if self.now - model.identities.get(identity, -NEVER) < WINDOW:
                model.duplicates += 1
            else:
                fresh.append(body)
                model.identities[identity] = self.now
        self.published_at.update(dict.fromkeys(fresh, self.wall_ns))
        model.real.publish_with_headers(payloads, self.now, self.wall_ns, delay)
        if fresh:
            model.publish(fresh, self.now + delay if delay else None)

    @rule(
        topic=topic_names,
        channel=channel_names,
        timeout=st.sampled_from([5.0, 10.0, 30.0]),
        ready=st.integers(0, 6),
        locality=st.sampled_from(Locality),
    )
    def subscribe(self, topic: str, channel: str, timeout: float, ready: int, locality: Locality) -> None:
        client = Client(self.channel(topic, channel).real, timeout, ready, locality)
        client.channel.add_consumer(client)
        self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(which=pick, ready=st.integers(0, 6))
    def say_ready(self, which: int, ready: int) -> None:
        client = self.a_client(which)
        client.ready = ready
        client.awake = True

    @precondition(lambda self: any(client.awake for client in self.clients))
    @rule(which=pick)
    def one_that_is_awake_asks(self, which: int) -> None:
        awake = [client for client in self.clients if client.awake]
        self.ask(awake[which % len(awake)])

    @precondition(lambda self: self.clients)
    @rule(which=pick)
    def one_asks_without_being_woken(self, which: int) -> None:
        self.ask(self.a_client(which))

    @rule()
    def all_have_their_turn(self) -> None:
        self.settle()
        for real, model in self.models.items():
            if real.depth and not model.paused:
                assert not any(client.room for client in self.clients if client.channel is real)

    @precondition(lambda self: self.clients)
    @rule(which=pick, choices=st.lists(pick, min_size=1, max_size=4))
    def finish(self, which: int, choices: list[int]) -> None:
        client = self.a_client(which)
        model = self.models[client.channel]
        bodies = [self.a_message(client, choice) for choice in choices]
        missing = []
        for body in bodies:
            if self.reason_not_in_flight(model, client, body):
                missing.append(self.id_of(body))
            else:
                del model.in_flight[body]
                model.finished += 1
        assert client.channel.finish(client, [self.id_of(body) for body in bodies]) == missing
        client.awake = True

    @precondition(lambda self: self.clients)
    @rule(which=pick, choice=pick, delay=delays)
    def requeue(self, which: int, choice: int, delay: float) -> None:
        client = self.a_client(which)
        model, body = self.models[client.channel], self.a_message(client, choice)
        reason = self.reason_not_in_flight(model, client, body)
        assert refusal(client.channel.requeue, client, self.id_of(body), self.now, delay) == reason
        if reason is None:
            attempts = model.in_flight.pop(body).attempts + 1
            model.requeued += 1
            if not delay:
                model.waiting[body] = attempts
            elif len(model.deferred) < MEM_QUEUE_SIZE:
                model.deferred[body] = (self.now + delay, attempts)
            else:
                model.dropped += 1
        client.awake = True

    @precondition(lambda self: self.clients)
    @rule(which=pick, choice=pick)
    def touch(self, which: int, choice: int) -> None:
        client = self.a_client(which)
        model, body = self.models[client.channel], self.a_message(client, choice)
        reason = self.reason_not_in_flight(model, client, body)
        assert refusal(client.channel.touch, client, self.id_of(body), self.now, client.timeout) == reason
        if reason is None:
            sent = model.in_flight[body]
            sent.deadline = min(self.now + client.timeout, sent.delivered + MAX_MSG_TIMEOUT)
        client.awake = True

    @precondition(lambda self: self.clients)
    @rule(which=pick)
    def disconnect(self, which: int) -> None:
        client = self.a_client(which)
        real = client.channel
        self.leave(client)
        if real.ephemeral and not any(other.channel is real for other in self.clients):
            self.forget(self.topics[real.topic_name], real.name)

    @rule(seconds=st.integers(0, 12))
    def time_passes(self, seconds: int) -> None:
        self.run_until(self.now + seconds)

    # --- What operators do --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.models)
    @rule(which=pick)
    def pause_or_unpause_a_channel(self, which: int) -> None:
        real, model = list(self.models.items())[which % len(self.models)]
        (real.unpause if model.paused else real.pause)()
        model.paused = not model.paused

    @precondition(lambda self: self.topics)
    @rule(which=pick)
    def pause_or_unpause_a_topic(self, which: int) -> None:
        model = list(self.topics.values())[which % len(self.topics)]
        (model.real.unpause if model.paused else model.real.pause)()
        model.paused = not model.paused
        model.fan_out()

    @rule(topic=topic_names, channel=channel_names)
    def create_channel(self, topic: str, channel: str) -> None:
        self.channel(topic, channel)

    @precondition(lambda self: self.models)
    @rule(which=pick, what=st.sampled_from(["empty channel", "empty topic", "delete channel", "delete topic"]))
    def destroy(self, which: int, what: str) -> None:
        real, model = list(self.models.items())[which % len(self.models)]
        topic = self.topics[real.topic_name]
        if what == "empty channel":
            real.empty()
            model.empty()
        elif what == "empty topic":
            topic.real.empty()
            topic.waiting.clear()
            topic.deferred.clear()
        elif what == "delete channel":
            topic.real.delete_channel(real.name)
            self.forget(topic, real.name)
        else:
            self.broker.delete_topic(real.topic_name)
            for channel in topic.channels.values():
                del self.models[channel.real]
            del self.topics[real.topic_name]
        self.bury()

    # --- What always holds --------------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_in_its_one_place(self) -> None:
        for real, model in self.models.items():
            assert real.depth == len(model.waiting)
            assert real.deferred_count == len(model.deferred)
            assert real.in_flight_count == len(model.in_flight)
            assert model.put == model.finished + model.dropped + model.emptied + model.alive
        for client in self.clients:
            sent = self.models[client.channel].in_flight
            own = {message.body(frame): message.attempts(frame) for frame in client.in_flight.frames.values()}
            assert own == {body: each.attempts for body, each in sent.items() if each.owner is client}

    @invariant()
    def the_counters_tell_it(self) -> None:
        for topic in snapshot(self.broker, self.now, include_clients=False):
            model = self.topics[topic.topic_name]
            assert topic.depth == len(model.waiting) + len(model.deferred)
            assert (topic.message_count, topic.dropped_count) == (model.published, model.dropped)
            assert topic.paused == model.paused
            assert topic.duplicate_count == model.duplicates
            assert [channel.channel_name for channel in topic.channels] == sorted(model.channels)
            for channel in topic.channels:
                its = model.channels[channel.channel_name]
                assert (channel.message_count, channel.dropped_count) == (its.put, its.dropped)
                assert (channel.requeue_count, channel.timeout_count) == (its.requeued, its.timed_out)
                assert channel.paused == its.paused

    @invariant()
    def no_topic_is_left_over(self) -> None:
        assert self.broker.topics == {name: model.real for name, model in self.topics.items()}

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """As many consumers are awake as there are frames, or none with room waits."""
        for real, model in self.models.items():
            clients = [client for client in self.clients if client.channel is real]
            if not model.paused and any(client.room and not client.awake for client in clients):
                assert sum(client.awake for client in clients) >= real.depth

    @invariant()
    def the_timer_is_never_late(self) -> None:
        for model in self.models.values():
            assert self.timer <= model.next_event()

    def teardown(self) -> None:
        """Whatever happened: what was not finished, dropped or emptied can still be had, once."""
        for name, topic in list(self.topics.items()):
            self.channel(name, "archive")
            topic.real.unpause()
            topic.paused = False
            topic.fan_out()
        for real, model in self.models.items():
            real.unpause()
            model.paused = False
        self.run_until(self.now + 1000)
        for real in self.models:
            client = Client(real, timeout=1e6, ready=PLENTY, locality=Locality.GLOBAL)
            real.add_consumer(client)
            self.clients.append(client)
        self.settle()
        for real, model in self.models.items():
            assert real.depth == real.deferred_count == len(model.waiting) == 0
            assert len(model.in_flight) == model.alive


class NearestFirstToo(QueueKeepsEveryMessage):
    topology_aware = True

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """No consumer with room waits, or as many of its locality are awake as there are frames, or a nearer one is."""
        for real, model in self.models.items():
            clients = [client for client in self.clients if client.channel is real]
            awake = [client.locality for client in clients if client.awake]
            for client in clients:
                if client.room and not client.awake and not model.paused and awake.count(client.locality) < real.depth:
                    assert min(awake) < client.locality


TestNearestFirstToo = NearestFirstToo.TestCase
TestNearestFirstToo.settings = settings(stateful_step_count=50)
TestQueueKeepsEveryMessage = QueueKeepsEveryMessage.TestCase
TestQueueKeepsEveryMessage.settings = settings(stateful_step_count=100)
