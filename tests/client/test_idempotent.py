"""An idempotent producer, in threads and on an event loop: a retry after an unknown outcome is no duplicate."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nsq_compat.client.log_reader import LogReader
from nsq_compat.client.nodes import Outcome, Refused, TooFewCopies, Unknown
from nsq_compat.client.producer import Producer as ThreadedProducer
from nsq_compat.protocol.frames import OK, error_frame
from nsq_compat.protocol.headers import decode
from tests.client.fake_nsqd import CLOSE, Answer, FakeNsqd, MakeNsqd
from tests.client.on_loop import LoopProducer, end_loops
from tests.client.waiting import wait_until

Producer = ThreadedProducer
"""The kind that is tested."""


@pytest.fixture(params=[ThreadedProducer, LoopProducer], ids=["threads", "asyncio"], autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules[__name__], "Producer", request.param)
    yield
    end_loops()


@pytest.fixture
def make(make_nsqd: MakeNsqd):
    """An nsqd that takes headers, and answers HPUB so."""

    def make_one(*answers: Answer, **others: Answer) -> FakeNsqd:
        hpub: Answer = list(answers) if answers else OK  # type: ignore[arg-type]
        return make_nsqd({"HPUB": hpub, "HMPUB": OK, **others}, max_rdy_count=2500, nsq_compat={"headers": True})

    return make_one


def ids_at(nsqd: FakeNsqd) -> list[str]:
    """The ids of the HPUBs that it received."""
    return [
        decode(body)[0]["nsq-id"]
        for peer in nsqd.peers
        for body in peer.bodies
        if body[:1] == b"\0"  # not that of IDENTIFY
    ]


def logged(nsqd, topic):
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address) as reader:
        return [(message.body, dict(message.headers)) for message in reader]


def test_each_message_gets_an_id_of_its_own(nsqd, topic):
    with Producer(nsqd.tcp_address, idempotent=True) as producer:
        producer.publish(topic, b"1")
        producer.publish(topic, b"2", headers={"a": "b"})
        producer.publish_many(topic, [b"3", b"4"])
        producer.publish_many(topic, [b"5", b"6"], headers=[{}, {"a": "b"}])
        producer.publish(topic, b"7", defer=0.01)
    found = logged(nsqd, topic)
    assert [body for body, _ in found] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert len({headers["nsq-id"] for _, headers in found}) == 7
    assert [headers.get("a") for _, headers in found] == [None, "b", None, None, None, "b", None]


def test_a_topic_without_a_window_is_reported_once(nsqd, topic, caplog):
    with caplog.at_level("WARNING"):
        with Producer(nsqd.tcp_address) as producer:
            producer.publish(topic, b"1", headers={"a": "b"})
        assert caplog.messages == []
        with Producer(nsqd.tcp_address, idempotent=True) as producer:
            producer.publish(topic, b"1")
            producer.publish_many(topic, [b"2", b"3"])
    assert caplog.messages == [
        f"[{nsqd.tcp_address}] no policy sets dedup_window for the topic {topic}: if a publish is repeated, its "
        "messages may be there twice"
    ]


def test_a_topic_with_a_window_is_not_reported(make, caplog):
    node = make(OK)
    with Producer(node.address, idempotent=True) as producer:
        producer.publish("t", b"1")
    assert caplog.messages == []


def test_an_id_of_the_caller_stays(nsqd, topic):
    with Producer(nsqd.tcp_address, idempotent=True) as producer:
        producer.publish(topic, b"1", headers={"NSQ-Id": "mine"})
    assert logged(nsqd, topic) == [(b"1", {"nsq-id": "mine"})]


def test_a_node_that_does_not_answer_is_asked_again_with_the_same_id_and_no_other_one(make):
    node, other = make(CLOSE, CLOSE, OK), make(OK)
    with Producer([node.address, other.address], idempotent=True) as producer:
        published = producer.publish("t", b"one")
    assert (published.nodes, published.doubtful) == ((node.address,), ())
    assert [each.outcome for each in published.attempts] == [Outcome.RETRIED, Outcome.RETRIED, Outcome.SENT]
    first, *again = ids_at(node)
    assert again == [first, first]
    assert ids_at(other) == []


def test_a_node_that_refuses_the_repetition_does_not_have_the_message(make):
    node, other = make(CLOSE, error_frame(b"E_HPUB_FAILED HPUB failed no space left on device")), make(OK)
    with Producer([node.address, other.address], idempotent=True) as producer:
        published = producer.publish("t", b"one")
    assert (published.nodes, published.doubtful) == ((other.address,), ())
    assert ids_at(other) == ids_at(node)[:1]


def test_a_node_that_was_not_sent_the_message_is_replaced_by_another(make):
    other = make(OK)
    with Producer(["127.0.0.1:1", other.address], idempotent=True) as producer:
        assert producer.publish("t", b"one").nodes == (other.address,)


def test_a_node_that_cannot_be_reached_after_an_unknown_outcome_stays_the_only_one(make):
    node, other = make(CLOSE), make(OK)
    with Producer([node.address, other.address], idempotent=True, publish_timeout=0.5) as producer:
        with pytest.raises(Unknown, match="nsqd may have the message") as failure:
            producer.publish("t", b"one")
        assert failure.value.doubtful == (node.address,)
        assert ids_at(other) == []
        node.answers["HPUB"] = OK
        published = producer.retry(failure.value)
    assert (published.nodes, published.doubtful) == ((node.address,), ())
    assert len(set(ids_at(node))) == 1
    assert ids_at(other) == []


def test_a_publish_waits_for_a_node_that_is_not_running(make_nsqd):
    node = make_nsqd({"HPUB": OK}, listens=False, max_rdy_count=2500, nsq_compat={"headers": True})
    other = make_nsqd({"IDENTIFY": CLOSE})
    with (
        Producer([node.address, other.address], idempotent=True, publish_timeout=60) as producer,
        ThreadPoolExecutor(1) as pool,
    ):
        publishing = pool.submit(producer.publish, "t", b"one")
        wait_until(lambda: len(other.peers) >= 3)  # both have been tried in vain, again and again
        node.listen()
        published = publishing.result(60)
    assert published.nodes == (node.address,)
    assert {str(each) for each in published.attempts} >= {f"{node.address}: connection refused"}
    assert len(ids_at(node)) == 1


def test_a_publish_fails_at_the_timeout_if_no_node_can_be_reached(make):
    gone = make(OK)
    gone.close()
    with Producer(gone.address, idempotent=True, publish_timeout=0.5) as producer, pytest.raises(Refused) as failure:
        producer.publish("t", b"one")
    assert 2 <= len(failure.value.attempts) <= 3


def test_a_retry_is_for_a_producer_of_other_nodes_too(make):
    node, standby = make(CLOSE), make(OK)
    with Producer(node.address, idempotent=True, publish_timeout=0.2) as producer, pytest.raises(Unknown) as failure:
        producer.publish_many("t", [b"one"])
    with Producer(standby.address, idempotent=True) as producer:
        published = producer.retry(failure.value)
    assert (published.nodes, published.doubtful) == ((standby.address,), (node.address,))
    assert set(ids_at(standby)) == set(ids_at(node))


def test_a_retry_publishes_only_the_copies_that_are_missing(make):
    one, two = make(OK), make(CLOSE)
    with Producer([one.address, two.address], idempotent=True, copies=2, publish_timeout=0.5) as producer:
        with pytest.raises(TooFewCopies) as failure:
            producer.publish("t", b"one")
        two.answers["HPUB"] = OK
        assert set(producer.retry(failure.value).nodes) == {one.address, two.address}
    assert len(ids_at(one)) == 1


def test_only_what_has_ids_can_be_retried(fake):
    fake.answers["PUB"] = CLOSE
    with Producer(fake.address, publish_timeout=0.2) as producer:
        with pytest.raises(Unknown) as failure:
            producer.publish("t", b"one")
        with pytest.raises(ValueError, match="only what an idempotent producer has published can be retried"):
            producer.retry(failure.value)


def test_a_retry_takes_the_error_of_a_publish():
    with (
        Producer("127.0.0.1:1", idempotent=True) as producer,
        pytest.raises(TypeError, match="retry takes the error"),
    ):
        producer.retry(ValueError("nonsense"))  # type: ignore[arg-type]


def test_an_nsqd_without_headers_is_sent_nothing(fake):
    with Producer(fake.address, idempotent=True) as producer:
        with pytest.raises(
            Refused, match="it does not take messages with headers or ids, which only an nsqd of nsq_compat"
        ):
            producer.publish("t", b"one")
        (peer,) = fake.peers
        assert [line for line in peer.lines if not line.startswith(("IDENTIFY", "NOP"))] == []


def test_ids_need_headers():
    with pytest.raises(ValueError, match="idempotent needs message_headers, because an id is a header"):
        Producer("127.0.0.1:1", idempotent=True, message_headers=False)


def test_publishes_in_the_background_are_repeated_with_their_ids(make):
    node = make(HMPUB=[CLOSE, OK])
    with ThreadedProducer(node.address, idempotent=True, batch_linger=3600) as producer:
        futures = [producer.publish_async("t", b"%d" % number) for number in range(5)]
        assert producer.flush(30)
        assert all(future.result().nodes == (node.address,) for future in futures)
    first, again = (body for peer in node.peers for body in peer.bodies if body[:1] == b"\0")
    assert first == again
