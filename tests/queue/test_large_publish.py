"""A publish in steps: others publish in between, and the batch is there as a whole or not at all."""

import errno
import os

import pytest

from nsq_compat.log.storage import Durability
from nsq_compat.protocol import message
from nsq_compat.queue.publish_batch import MAX_AT_ONCE, LargeBatch
from nsq_compat.queue.values import Exiting, Refused

COUNT = MAX_AT_ONCE + 4000
BODIES = [b"%d" % number for number in range(COUNT)]

LEVELS = pytest.mark.parametrize("durability", list(Durability))


def begins(daemon, bodies=BODIES, topic="orders"):
    return LargeBatch(daemon.topic(topic), [*bodies], daemon.now, daemon.now_ns)


def everything(consumer):
    return [body for batch in iter(lambda: consumer.takes(256), []) for body in batch]


def steps_to_its_end(batch):
    steps = 1
    while not batch.step():
        steps += 1
    return steps


def staged_files(data_path):
    return [name for name in os.listdir(data_path.folder()) if name.startswith("staged")]


def ids_of(consumer):
    return [message.message_id(frame) for frame in consumer.frames.values()]


@LEVELS
def test_all_messages_are_published_in_order_by_the_last_step(data_path, durability):
    daemon = data_path.start(durability)
    consumer = daemon.consumer()
    batch = begins(daemon)
    while not batch.step():
        assert daemon.channel().depth == daemon.topic().message_count == 0
    assert daemon.channel().depth == daemon.topic().message_count == COUNT
    assert daemon.topic().message_bytes == sum(map(len, BODIES))
    assert everything(consumer) == BODIES
    assert staged_files(data_path) == []


@pytest.mark.interpreted
def test_a_step_makes_a_bounded_number_of_messages(data_path):
    daemon = data_path.start()
    made = []
    stamp = daemon.topic().frames.make_from
    batch = begins(daemon)

    def noting(bodies, *rest):
        made.append(len(bodies))
        return stamp(bodies, *rest)

    daemon.topic().frames.make_from = noting
    assert steps_to_its_end(batch) > COUNT / 4096
    assert max(made) <= 4096
    assert sum(made) == COUNT


def test_a_step_makes_a_bounded_number_of_bytes(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    bodies = [b"x" * 1000] * COUNT
    assert steps_to_its_end(begins(daemon, bodies)) > COUNT * 1000 / (1 << 20)
    assert len(everything(consumer)) == COUNT


@LEVELS
def test_messages_published_meanwhile_are_before_the_batch_and_ids_grow(data_path, durability):
    daemon = data_path.start(durability)
    consumer = daemon.consumer()
    batch = begins(daemon)
    others: list[bytes] = []
    while not batch.step():
        daemon.now += 0.01
        others.append(b"other %d" % len(others))
        daemon.publishes(others[-1])
    daemon.publishes(b"behind")
    assert everything(consumer) == [*others, *BODIES, b"behind"]
    assert ids_of(consumer) == sorted(set(ids_of(consumer)))


def test_a_batch_begins_again_if_other_publishes_reach_its_ids(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    batch = begins(daemon)
    batch.step()
    daemon.now += 100.0
    daemon.publishes(b"a")
    assert steps_to_its_end(batch) > COUNT / 4096 + 2
    assert everything(consumer) == [b"a", *BODIES]
    assert ids_of(consumer) == sorted(set(ids_of(consumer)))


def test_two_batches_of_one_topic_do_not_mix(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    first, second = begins(daemon), begins(daemon, [b"second"] * COUNT)
    while not first.step():
        assert not second.step()
    assert steps_to_its_end(second) > 1
    assert everything(consumer) == [*BODIES, *[b"second"] * COUNT]


def test_a_cancelled_batch_leaves_nothing_and_delays_no_other(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    first, second = begins(daemon), begins(daemon)
    first.step()
    assert staged_files(data_path) != []
    first.cancel()
    assert staged_files(data_path) == []
    steps_to_its_end(second)
    assert everything(consumer) == BODIES


@pytest.mark.parametrize("refused", range(1, 26))
def test_a_disk_that_refuses_any_write_of_the_batch_loses_all_of_it_and_nothing_else(data_path, disk, refused):
    daemon = data_path.start()
    consumer = daemon.consumer()
    daemon.publishes(b"before")
    writes = 0

    def write(fd, data, offset):
        nonlocal writes
        writes += 1
        if writes == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    disk.write = write
    batch = begins(daemon)
    try:
        steps_to_its_end(batch)
        published = BODIES
    except OSError:
        published = []
    disk.write = os.pwrite
    assert bool(published) == (writes < refused)
    daemon.publishes(b"behind")
    assert everything(consumer) == [b"before", *published, b"behind"]
    assert staged_files(data_path) == []
    data_path.kill(daemon)
    again = data_path.start()
    assert everything(again.consumer()) == [b"before", *published, b"behind"]


def test_a_topic_that_is_deleted_meanwhile_takes_nothing(data_path):
    daemon = data_path.start()
    batch = begins(daemon)
    batch.step()
    daemon.broker.delete_topic("orders")
    with pytest.raises(Exiting):
        batch.step()
    assert daemon.topic().message_count == 0


@LEVELS
def test_a_daemon_that_is_killed_in_the_middle_has_nothing_of_the_batch(data_path, durability):
    daemon = data_path.start(durability)
    daemon.channel()
    daemon.publishes(b"before")
    batch = begins(daemon)
    for _ in range(3):
        batch.step()
    data_path.kill(daemon)
    again = data_path.start(durability)
    assert everything(again.consumer()) == ([] if durability is Durability.MEMORY else [b"before"])
    assert staged_files(data_path) == []


@LEVELS
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_published_batch_survives_the_end_of_the_daemon(data_path, end, durability):
    daemon = data_path.start(durability, mem_queue_size=100_000)
    daemon.channel()
    daemon.publishes(b"before")
    steps_to_its_end(begins(daemon))
    daemon.publishes(b"behind")
    getattr(data_path, end)(daemon)
    again = data_path.start(durability, mem_queue_size=100_000)
    received, expected = everything(again.consumer()), [b"before", *BODIES, b"behind"]
    if end == "stop":
        assert sorted(received) == sorted(expected)
    elif durability is not Durability.MEMORY:
        assert received == expected
    assert again.topic().store.log.damage.records == 0


def test_a_message_of_the_batch_is_found_by_its_id(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    daemon.publishes(b"before")
    steps_to_its_end(begins(daemon))
    daemon.publishes(b"behind")
    assert len(everything(consumer)) == COUNT + 2
    wanted = [message.message_id(consumer.frames[body]) for body in (b"before", b"0", b"777", BODIES[-1], b"behind")]
    found = daemon.topic().store.log.fetch(wanted)
    assert [message.body(found[each]) for each in wanted] == [b"before", b"0", b"777", BODIES[-1], b"behind"]


def test_a_topic_without_channels_holds_it_for_the_first_one(data_path):
    daemon = data_path.start()
    steps_to_its_end(begins(daemon))
    assert daemon.topic().depth == COUNT
    assert everything(daemon.consumer()) == BODIES


def test_an_ephemeral_channel_keeps_what_it_has_room_for(data_path):
    daemon = data_path.start(mem_queue_size=5000)
    lasting, passing = daemon.consumer(), daemon.consumer("metrics#ephemeral")
    steps_to_its_end(begins(daemon))
    assert everything(passing) == BODIES[:5000]
    assert daemon.channel("metrics#ephemeral").dropped_count == COUNT - 5000
    assert everything(lasting) == BODIES


@pytest.mark.parametrize("room", [100, COUNT + 100])
def test_an_ephemeral_topic_keeps_what_it_has_room_for(start, room):
    daemon = start(mem_queue_size=room)
    consumer = daemon.consumer(topic="t#ephemeral")
    steps_to_its_end(begins(daemon, topic="t#ephemeral"))
    assert everything(consumer) == BODIES[:room]


def test_a_topic_that_is_too_deep_for_the_batch_refuses_it(data_path):
    daemon = data_path.start()
    daemon.channel()
    daemon.follows({"topic": "orders", "max_depth": 10})
    with pytest.raises(Exception, match="full"):
        begins(daemon).step()
    assert staged_files(data_path) == []


def test_the_last_of_it_are_among_the_recent_messages(data_path):
    daemon = data_path.start()
    daemon.topic().recent(10, daemon.now, daemon.now_ns)
    steps_to_its_end(begins(daemon))
    recent = daemon.topic().recent(3, daemon.now, daemon.now_ns)
    assert [message.body(each.frame) for each in recent] == BODIES[-3:]


def test_the_bodies_of_a_published_batch_are_freed_in_steps(data_path):
    daemon = data_path.start()
    bodies = [b"%d" % number for number in range(100_000)]
    batch = LargeBatch(daemon.topic(), bodies, daemon.now, daemon.now_ns)
    steps_to_its_end(batch)
    left = [len(bodies)]
    while batch.forget_bodies():
        left.append(len(bodies))
    assert len(left) > 3
    assert bodies == []
    batch.cancel()
    assert daemon.topic().message_count == 100_000


def test_clients_take_turns(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    topic = daemon.topic()
    bodies = {name: [b"%s %d" % (name.encode(), number) for number in range(COUNT)] for name in ("a0", "a1", "b0")}
    batches = {
        name: LargeBatch(topic, [*each], daemon.now, daemon.now_ns, client=name[0]) for name, each in bodies.items()
    }
    order: list[str] = []
    while len(order) < len(batches):
        for name, batch in batches.items():
            if name not in order and batch.step():
                order.append(name)
    assert order == ["a0", "b0", "a1"]
    assert everything(consumer) == [body for name in order for body in bodies[name]]


@LEVELS
def test_a_batch_that_waits_does_the_work_of_the_one_before_it(data_path, durability):
    daemon = data_path.start(durability)
    consumer = daemon.consumer()
    first = begins(daemon)
    second = begins(daemon, [b"last", *BODIES])
    steps_to_its_end(second)
    assert (daemon.topic().message_count, first.is_published) == (2 * COUNT + 1, False)
    assert first.step()
    assert first.is_published
    assert everything(consumer) == [*BODIES, b"last", *BODIES]
    assert staged_files(data_path) == []


def test_what_fails_in_the_step_of_another_batch_is_raised_by_its_own(data_path):
    daemon = data_path.start()
    daemon.channel()
    first, second = begins(daemon), begins(daemon)
    second.step()

    def refuse(*_):
        daemon.topic().admission = None
        raise Refused("it is full")

    daemon.topic().admission = lambda count, now: setattr(daemon.topic(), "admission", refuse)
    assert not second.step()
    assert daemon.topic().admission is None
    steps_to_its_end(second)
    with pytest.raises(Refused, match="it is full"):
        first.step()
    with pytest.raises(Refused, match="it is full"):
        first.step()
    assert daemon.topic().message_count == COUNT
    assert staged_files(data_path) == []
