import asyncio
import functools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client.connection import do_together
from nsq_compat.client.dedupe import Deduplicated, Filter, KeyState, SlotFilter, overwritten, slots_for
from nsq_compat.client.memcached import MemcachedFilter
from nsq_compat.client.message import Message
from nsq_compat.client.producer import Producer
from nsq_compat.client.pynsq import Reader
from tests.client.waiting import Keeping, wait_until


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"key %d" % number for number in range(begin, begin + count)]


# --- How large --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "later", "probability"), [(100, 459, 0.99), (1_563_461, 3_600_000, 0.90)])
def test_the_probability_that_a_key_is_overwritten(slots, later, probability):
    assert overwritten(slots, later) == pytest.approx(probability, abs=1e-4)


@pytest.mark.parametrize(("kept", "later", "slots"), [(0.9, 3_600_000, 34.2e6), (0.01, 459, 101)])
def test_the_number_of_slots_that_keep_a_key_with_this_probability(kept, later, slots):
    assert slots_for(kept, later) == pytest.approx(slots, rel=2e-3)


@given(st.floats(0.001, 0.999), st.integers(1, 10**9))
def test_the_computed_number_of_slots_is_the_smallest_that_suffices(kept, later):
    slots = slots_for(kept, later)
    assert 1 - overwritten(slots, later) >= kept * (1 - 1e-9)
    if slots > 2:
        assert 1 - overwritten(slots - 2, later) < kept * (1 + 1e-9)


def test_one_slot_holds_the_last_key():
    assert overwritten(1, 0) == 0
    assert overwritten(1, 1) == 1


@pytest.mark.parametrize(("kept", "later"), [(0, 5), (1, 5), (0.5, 0)])
def test_invalid_parameters_of_a_filters_size_are_a_value_error(kept, later):
    with pytest.raises(ValueError, match="probability|later must"):
        slots_for(kept, later)


@pytest.mark.parametrize("later", [500, 2000, 5000])
def test_the_measured_share_of_forgotten_keys_is_the_computed_one(later):
    slots, sample = 2000, 400
    filter_ = SlotFilter(slots)
    for key in numbered(sample):
        filter_.claim(key)
        filter_.keep(key)
    for key in numbered(later, begin=sample):
        filter_.claim(key)
    forgotten = sum(filter_.claim(key) is KeyState.NEW for key in reversed(numbered(sample)))
    # On average 200 keys of the sample came after a key, and each claim inserts the key again.
    assert forgotten / sample == pytest.approx(overwritten(slots, later + sample // 2), abs=0.07)


# --- Filters ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[SlotFilter, MemcachedFilter])
def make_filter(request: pytest.FixtureRequest) -> Callable[[int], Filter]:
    if request.param is SlotFilter:
        return SlotFilter
    return functools.partial(MemcachedFilter, request.getfixturevalue("memcached"))


def test_a_key_is_new_then_busy_then_seen(make_filter):
    filter_ = make_filter(100)
    assert [filter_.claim(b"a"), filter_.claim(b"a")] == [KeyState.NEW, KeyState.BUSY]
    filter_.keep(b"a")
    assert filter_.claim(b"a") is KeyState.SEEN


def test_a_key_that_was_not_handled_is_new_again(make_filter):
    filter_ = make_filter(100)
    filter_.claim(b"a")
    filter_.forget(b"a")
    assert filter_.claim(b"a") is KeyState.NEW


def test_only_the_key_in_a_slot_is_kept_or_forgotten(make_filter):
    filter_ = make_filter(1)
    filter_.claim(b"a")
    filter_.claim(b"b")
    filter_.keep(b"a")
    filter_.forget(b"a")
    assert filter_.claim(b"b") is KeyState.BUSY
    assert filter_.claim(b"a") is KeyState.NEW


@given(st.lists(st.tuples(st.sampled_from("ckf"), st.binary(max_size=2)), max_size=200), st.integers(1, 50))
def test_a_filter_may_forget_keys_and_never_invents_them(steps, slots):
    filter_ = SlotFilter(slots)
    claimed, kept = set(), set()
    for step, key in steps:
        if step == "c":
            sight = filter_.claim(key)
            assert sight is not KeyState.SEEN or key in kept
            assert sight is not KeyState.BUSY or key in claimed
            if sight is KeyState.NEW:
                claimed.add(key)
                kept.discard(key)
        elif step == "k":
            filter_.keep(key)
            if key in claimed:
                kept.add(key)
        else:
            filter_.forget(key)
            claimed.discard(key)
            kept.discard(key)


def test_one_of_many_threads_claims_a_key():
    filter_ = SlotFilter(1 << 20)
    wins: Counter[bytes] = Counter()
    keys = numbered(500)

    def claim_all() -> None:
        wins.update([key for key in keys if filter_.claim(key) is KeyState.NEW])

    do_together([claim_all] * 8)
    assert set(wins.values()) == {1}
    assert len(wins) == 500


def test_a_filter_needs_a_slot():
    with pytest.raises(ValueError, match="slots"):
        SlotFilter(0)


# --- Around a handler -------------------------------------------------------------------------------------------------


def test_a_message_delivered_by_two_nodes_is_handled_once(make_nsqd, start_consumer):
    bodies = []
    handler = Deduplicated(lambda message: bodies.append(message.body), SlotFilter(1000))
    pair = [make_nsqd(), make_nsqd()]
    start_consumer(handler, nsqd_tcp_addresses=[fake.address for fake in pair], max_in_flight=10)
    wait_until(lambda: all(fake.said("RDY") for fake in pair))
    for fake in pair:
        fake.send_messages([b"one", b"two"])
        wait_until(lambda fake=fake: len(fake.peer.finished) == 2)  # type: ignore[misc]
    assert sorted(bodies) == [b"one", b"two"]
    assert handler.duplicates == 2


def test_a_failure_is_forgotten_so_that_the_redelivery_is_handled(nsqd, topic, start_consumer):
    attempts = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise RuntimeError("on purpose")
        if message.attempts == 2:
            message.requeue(delay=0)

    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"body")
        consumer = start_consumer(
            Deduplicated(handle, SlotFilter(1000)),
            topic,
            nsqd_tcp_addresses=nsqd.tcp_address,
            requeue_delay=0,
            backoff=False,
        )
        wait_until(lambda: len(attempts) == 3)
        wait_until(lambda: consumer.in_flight == 0)
        producer.publish(topic, b"body")
        wait_until(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 0)
    assert attempts == [1, 2, 3]


def test_a_message_being_handled_is_neither_handled_again_nor_finished(fake, start_consumer):
    kept = Keeping()
    handler = Deduplicated(kept, SlotFilter(1000))
    start_consumer(handler, nsqd_tcp_addresses=fake.address, max_in_flight=10)
    first, second = fake.send_messages([b"body", b"body"])
    wait_until(lambda: fake.said("REQ"))
    assert fake.said("REQ") == [f"REQ {second.decode()} 90000"]
    kept[0].finish()
    (third,) = fake.send_messages([b"body"])
    wait_until(lambda: fake.peer.finished == [first, third])
    assert (len(kept), handler.postponed, handler.duplicates) == (1, 1, 1)


def test_any_function_of_a_message_may_be_the_key(fake, start_consumer):
    bodies = []
    handler = Deduplicated(
        lambda message: bodies.append(message.body), SlotFilter(1000), key=lambda message: message.body[:1]
    )
    start_consumer(handler, nsqd_tcp_addresses=fake.address, max_in_flight=10)
    fake.send_messages([b"a1", b"a2", b"b1"])
    wait_until(lambda: len(fake.peer.finished) == 3)
    assert bodies == [b"a1", b"b1"]


def test_a_reader_can_use_a_deduplicated_handler(fake):
    bodies = []

    async def handle(message: Message) -> bool:
        bodies.append(message.body)
        return len(bodies) > 1

    async def talk() -> None:
        reader = Reader(
            "t", "c", Deduplicated(handle, SlotFilter(1000)), nsqd_tcp_addresses=fake.address, max_in_flight=5
        )
        async with asyncio.timeout(20):
            for expected in ("RDY", "REQ", "FIN", "FIN again"):
                while not (fake.said(expected) or len(fake.peers and fake.peer.finished) >= expected.count("N") > 0):
                    await asyncio.sleep(0.005)
                fake.send_messages([b"body"])
        await asyncio.to_thread(reader.shut_down, 1)

    asyncio.run(talk())
    assert bodies == [b"body", b"body"]
