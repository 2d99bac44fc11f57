import threading
from collections.abc import Sequence

import pytest

from nsq_compat.client.batching import Batcher, Closed
from nsq_compat.client.nodes import Attempt, Outcome, Published, Refused, Unknown
from nsq_compat.client.producer import Producer
from nsq_compat.protocol.errors import E_BAD_MESSAGE, NsqError
from tests.client.waiting import wait_until

PUBLISHED = Published((Attempt("a:1", Outcome.SENT),))


class Nsqd:
    """Receives batches one at a time; blocks while `gate` is closed."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[bytes], float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refused: set[bytes] = set()
        self.is_lost = False
        self.is_away = False

    def publish(self, topic: str, bodies: Sequence[bytes], defer: float) -> Published:
        self.batches.append((topic, list(bodies), defer))
        self.gate.wait()
        if self.is_lost:
            raise Unknown(())
        if self.refused & set(bodies):
            raise Refused((Attempt("a:1", Outcome.REFUSED, NsqError(E_BAD_MESSAGE, "too big")),))
        if self.is_away:
            raise Refused((Attempt("a:1", Outcome.REFUSED, ConnectionRefusedError()),))
        return PUBLISHED


@pytest.fixture
def nsqd() -> Nsqd:
    return Nsqd()


def behind_a_closed_gate(nsqd: Nsqd, batcher: Batcher) -> None:
    """Wait until a batch is being sent, so that the next one accumulates."""
    nsqd.gate.clear()
    batcher.add("first", [b"0"])
    wait_until(lambda: nsqd.batches)
    nsqd.batches.clear()


def test_messages_added_while_a_batch_is_sent_form_the_next_batch(nsqd):
    batcher = Batcher(nsqd.publish)
    behind_a_closed_gate(nsqd, batcher)
    for number in range(5):
        batcher.add("t", [b"%d" % number])
    nsqd.gate.set()
    assert batcher.close(20)
    assert nsqd.batches == [("t", [b"0", b"1", b"2", b"3", b"4"], 0.0)]


def test_a_batch_is_limited_in_messages_and_bytes(nsqd):
    batcher = Batcher(nsqd.publish, max_messages=3, max_bytes=100)
    behind_a_closed_gate(nsqd, batcher)
    for body in (b"1", b"2", b"3", b"4", b"x" * 96, b"y" * 200, b"5"):
        batcher.add("t", [body])
    nsqd.gate.set()
    assert batcher.close(20)
    assert [bodies for _, bodies, _ in nsqd.batches] == [
        [b"1", b"2", b"3"],
        [b"4"],
        [b"x" * 96],
        [b"y" * 200],
        [b"5"],
    ]


def test_topics_take_turns(nsqd):
    batcher = Batcher(nsqd.publish, max_messages=1)
    behind_a_closed_gate(nsqd, batcher)
    for topic, body in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")):
        batcher.add(topic, [body])
    nsqd.gate.set()
    assert batcher.close(20)
    assert [topic for topic, _, _ in nsqd.batches] == ["a", "b", "a", "b"]


def test_with_a_linger_a_batch_is_sent_when_it_is_full(nsqd):
    batcher = Batcher(nsqd.publish, max_messages=2, linger=3600)
    first = batcher.add("t", [b"1"])
    assert not first.done()
    batcher.add("t", [b"2"])
    assert first.result(20) is PUBLISHED
    assert nsqd.batches == [("t", [b"1", b"2"], 0.0)]
    assert batcher.close(20)


def test_with_a_linger_a_batch_is_sent_when_its_oldest_entry_is_due(nsqd):
    batcher = Batcher(nsqd.publish, linger=0.02)
    assert batcher.add("t", [b"1"]).result(20) is PUBLISHED
    assert batcher.close(20)


def test_flushing_ends_the_linger(nsqd):
    batcher = Batcher(nsqd.publish, linger=3600)
    future = batcher.add("t", [b"1"])
    assert batcher.flush(20)
    assert future.done()
    assert batcher.close(20)


def test_an_entry_is_sent_whole_and_a_deferred_one_alone(nsqd):
    batcher = Batcher(nsqd.publish, max_messages=2)
    behind_a_closed_gate(nsqd, batcher)
    batcher.add("t", [b"1", b"2", b"3"])
    batcher.add("t", [b"4"], 1.5)
    batcher.add("t", [b"5"])
    nsqd.gate.set()
    assert batcher.close(20)
    assert nsqd.batches == [("t", [b"1", b"2", b"3"], 0.0), ("t", [b"4"], 1.5), ("t", [b"5"], 0.0)]


def test_a_refused_entry_does_not_fail_the_others_of_its_batch(nsqd):
    batcher = Batcher(nsqd.publish)
    nsqd.refused = {b"bad"}
    behind_a_closed_gate(nsqd, batcher)
    good, bad = batcher.add("t", [b"good"]), batcher.add("t", [b"bad"])
    nsqd.gate.set()
    assert good.result(20) is PUBLISHED
    with pytest.raises(Refused):
        bad.result(20)
    assert batcher.close(20)


def test_an_unreachable_node_is_not_tried_again_for_each_entry(nsqd):
    batcher = Batcher(nsqd.publish)
    behind_a_closed_gate(nsqd, batcher)
    futures = [batcher.add("t", [b"1"]), batcher.add("t", [b"2"])]
    nsqd.is_away = True
    nsqd.gate.set()
    for future in futures:
        with pytest.raises(Refused):
            future.result(20)
    assert batcher.close(20)
    assert nsqd.batches == [("t", [b"1", b"2"], 0.0)]


def test_an_unknown_outcome_applies_to_the_whole_batch_and_nothing_is_sent_twice(nsqd):
    batcher = Batcher(nsqd.publish)
    behind_a_closed_gate(nsqd, batcher)
    futures = [batcher.add("t", [b"1"]), batcher.add("t", [b"2"])]
    nsqd.is_lost = True
    nsqd.gate.set()
    for future in futures:
        with pytest.raises(Unknown):
            future.result(20)
    assert len(nsqd.batches) == 1
    assert batcher.close(20)


def test_adding_blocks_while_too_many_bytes_are_waiting(nsqd):
    batcher = Batcher(nsqd.publish, max_waiting_bytes=10)
    behind_a_closed_gate(nsqd, batcher)
    batcher.add("t", [b"x" * 20])
    late = threading.Thread(target=batcher.add, args=("t", [b"late"]))
    late.start()
    late.join(0.05)
    assert late.is_alive()
    nsqd.gate.set()
    late.join(20)
    assert batcher.close(20)
    assert nsqd.batches[-1] == ("t", [b"late"], 0.0)


def test_entries_not_sent_before_the_batcher_closes_are_refused(nsqd):
    batcher = Batcher(nsqd.publish)
    behind_a_closed_gate(nsqd, batcher)
    waiting = batcher.add("t", [b"1"])
    assert not batcher.close(0.01)
    with pytest.raises(Refused):
        waiting.result(20)
    nsqd.gate.set()
    assert batcher.flush(20)
    assert batcher.close(20)


def test_a_closed_batcher_refuses_entries(nsqd):
    batcher = Batcher(nsqd.publish)
    assert batcher.close(20)
    with pytest.raises(Closed):
        batcher.add("t", [b"1"])


def test_a_cancelled_entry_is_not_sent(nsqd):
    batcher = Batcher(nsqd.publish)
    behind_a_closed_gate(nsqd, batcher)
    cancelled, other = batcher.add("t", [b"1"]), batcher.add("t", [b"2"])
    assert cancelled.cancel()
    nsqd.gate.set()
    assert other.result(20) is PUBLISHED
    assert batcher.close(20)
    assert ("t", [b"2"], 0.0) in nsqd.batches


# --- Producer ---------------------------------------------------------------------------------------------------------


def test_background_publishes_arrive_in_order_and_batched(fake):
    sent = [b"%d" % number for number in range(2000)]
    with Producer(fake.address) as producer:
        futures = [producer.publish_async("t", body) for body in sent]
        assert producer.flush(20)
        assert all(future.result().nodes == (fake.address,) for future in futures)
    assert [body for body in fake.peer.bodies if body.isdigit()] == sent
    assert len(fake.peer.said("MPUB")) < 1000


def test_closing_publishes_waiting_messages(fake):
    producer = Producer(fake.address, batch_linger=3600)
    future = producer.publish_async("t", b"body")
    assert producer.close()
    assert future.result().nodes == (fake.address,)


def test_invalid_topics_and_bodies_are_refused_at_once(fake):
    with Producer(fake.address) as producer:
        for topic, body in (("no spaces", b"x"), ("t", b"")):
            with pytest.raises(ValueError, match="valid topic|empty"):
                producer.publish_async(topic, body)
