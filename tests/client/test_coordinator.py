"""The decisions of a consumer, without connections: time is a number."""

import pytest

from nsq_compat.client.coordinator import Coordinator, Due
from nsq_compat.client.discovery import MAX_NODES, Listing
from nsq_compat.client.link import ConnectionLost, Link
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.session.client_session import ProtocolError

LOST = ConnectionLost("closed by nsqd")


class Recorded(Link):
    """Records the commands that it is given."""

    def __init__(self, address: str) -> None:
        super().__init__(address, ConnectionSettings())
        self.sent: list[bytes] = []

    def send(self, command: bytes) -> None:
        self.sent.append(command)


def coordinator(nsqds="a:1", lookupds=(), **options) -> Coordinator[Recorded]:
    return Coordinator("t", "c", nsqds, lookupds, options)  # type: ignore[arg-type]


def test_it_is_started_once():
    decides: Coordinator[Recorded] = Coordinator("t", "c", "a:1", (), {})
    decides.start()
    decides.stop(0)
    with pytest.raises(RuntimeError, match="it is stopped, make a new one"):
        decides.start()


def connect(decides: Coordinator[Recorded], address: str, now: float = 0) -> Recorded:
    connection = Recorded(address)
    decides.connecting(connection)
    decides.opened(connection, now)
    return connection


def test_named_nodes_are_connected_to_at_once_and_no_two_connections_are_made():
    decides = coordinator(["a:1", "b:1"])
    assert decides.due() <= 0
    assert decides.run_due(0) == Due(["a:1", "b:1"], [])
    decides.connecting(Recorded("a:1"))
    assert decides.run_due(0) == Due(["b:1"], [])
    assert not decides.may_connect("a:1")


def test_a_named_node_is_tried_again_with_a_delay_that_doubles_until_it_is_open():
    decides = coordinator(reconnect_delay=8, max_reconnect_delay=20, low_rdy_idle_timeout=1000)
    now = 0.0
    for delay in (8, 16, 20, 20):
        connection = Recorded("a:1")
        decides.connecting(connection)
        assert not decides.closed(connection, LOST, now)
        assert decides.run_due(now + delay - 0.1).connect == []
        now += delay
        assert decides.run_due(now).connect == ["a:1"]
    decides.closed(connect(decides, "a:1", now), LOST, now)
    assert decides.run_due(now + 8).connect == ["a:1"]


def test_a_discovered_node_is_connected_to_when_a_poll_lists_it():
    decides = coordinator((), ["l:1"])
    assert decides.run_due(0) == Due([], ["l:1"])
    decides.asking("l:1")
    assert decides.responded("l:1", Listing({"a:1"}), 0) == ["a:1"]
    connection = connect(decides, "a:1")
    assert decides.responded("l:1", Listing({"a:1"}), 0) == []
    decides.closed(connection, LOST, 0)
    assert decides.run_due(50).connect == []
    assert decides.responded("l:1", Listing({"a:1"}), 60) == ["a:1"]


def test_an_nsqlookupd_that_lists_others_with_each_poll_has_no_more_connections(caplog):
    decides = coordinator(["named:1"], ["rogue:1", "other:1"], lookupd_poll_interval=1)
    for turn in range(3):
        listed = {f"rogue:{number}" for number in range(1 + turn * MAX_NODES, 1 + (turn + 1) * MAX_NODES)}
        for address in decides.responded("rogue:1", Listing(listed), turn):
            decides.connecting(Recorded(address))
    assert len(decides.connections) == MAX_NODES
    assert f"lists {MAX_NODES} further nsqd; a client connects to {MAX_NODES} at most" in caplog.text
    # Another nsqlookupd has connections of its own, also to what the first one lists, and named nodes do not count.
    listed = {"a:1", "rogue:1", f"rogue:{3 * MAX_NODES}", "named:1"}
    assert decides.responded("other:1", Listing(listed), 3) == ["a:1", "named:1", f"rogue:{3 * MAX_NODES}"]
    decides.closed(decides.connections["rogue:7"], LOST, 4)
    further = ["a:1", "b:1", "named:1", f"rogue:{3 * MAX_NODES}"]
    assert decides.responded("rogue:1", Listing({"b:1", "c:1"}), 4) == further


def test_only_the_first_attempt_at_a_named_node_is_reported_as_unreachable():
    decides: Coordinator[Recorded] = Coordinator("t", "c", "a:1", (), {}, reports_unreachable=True)
    for expected in (True, False):
        connection = Recorded("a:1")
        decides.connecting(connection)
        assert decides.closed(connection, LOST, 0) is expected


def test_failures_stop_deliveries_until_a_test_succeeds():
    decides = coordinator(max_in_flight=10, first_backoff_duration=2)
    connection = connect(decides, "a:1")
    decides.received(connection, 1, 0)
    assert connection.sent == [b"RDY 1\n", b"RDY 10\n"]
    assert decides.concerns(False)
    assert not decides.concerns(True)
    decides.answered(False, 0)
    assert connection.sent[-1] == b"RDY 0\n"
    assert decides.due() <= 2
    decides.run_due(2)
    assert connection.sent[-1] == b"RDY 1\n"
    assert decides.concerns(True)
    decides.answered(True, 2)
    assert connection.sent[-1] == b"RDY 10\n"


@pytest.mark.parametrize("succeeded", [True, False, None])
def test_any_answer_frees_a_permit_for_a_connection_that_waits_for_one(succeeded):
    decides = coordinator(["a:1", "b:1"], max_in_flight=2, backoff=False)
    first = connect(decides, "a:1")
    first.in_flight = 2
    second = connect(decides, "b:1")
    assert second.sent == []
    first.in_flight = 0
    assert decides.concerns(succeeded)
    decides.answered(succeeded, 0)
    assert second.sent == [b"RDY 1\n"]


def test_stopping_takes_all_permits_and_connects_no_more():
    decides = coordinator(["a:1", "b:1"], max_in_flight=10)
    connection = connect(decides, "a:1")
    assert decides.stop(0) == [connection]
    assert connection.sent == [b"RDY 1\n", b"RDY 0\n"]
    assert decides.run_due(0).connect == []
    assert not decides.closed(connection, LOST, 0)


def test_waiting_messages_are_requeued_at_once():
    answers: list[object] = []

    class Answers(Recorded):
        def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
            answers.append((message.body, delay, backoff))

    decides = coordinator()
    decides.waiting += [Message(b"0" * 16, body, 0, 1, Answers("a:1")) for body in (b"1", b"2")]
    decides.requeue_waiting()
    assert answers == [(b"1", 0, False), (b"2", 0, False)]
    assert not decides.waiting


def test_the_log_says_when_a_lost_node_is_tried_again(caplog):
    named = coordinator("a:1", reconnect_delay=8)
    named.run_due(0)
    named.closed(connect(named, "a:1"), LOST, 0)
    found = coordinator((), ["l:1"], lookupd_poll_interval=60, lookupd_poll_jitter=0)
    found.run_due(0)
    found.asking("l:1")
    found.responded("l:1", Listing({"b:1"}), 0)
    found.closed(connect(found, "b:1"), LOST, 20)
    named.closed(connect(named, "c:1"), LOST, 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "[t/c] (a:1) closed by nsqd; re-connecting in 8 s",
        "[t/c] (b:1) closed by nsqd; trying it again if nsqlookupd lists it, which is asked in 40 s",
        "[t/c] (c:1) closed by nsqd; not trying it again",
    ]


def test_a_named_address_is_in_doubt_until_an_nsqd_has_answered_there():
    decides = coordinator(["a:1", "b:1"], ["l:1"])
    for address, is_known in (("a:1", False), ("b:1", False), ("found:1", True)):
        connection = Recorded(address)
        decides.connecting(connection)
        assert connection.is_known is is_known
    decides.opened(decides.connections["a:1"], 0)
    for address, is_known in (("a:1", True), ("b:1", False)):
        decides.closed(decides.connections[address], LOST, 0)
        connection = Recorded(address)
        decides.connecting(connection)
        assert connection.is_known is is_known


def test_why_it_is_not_subscribed():
    decides = coordinator("a:1", ["l:1"])

    def reason() -> str:
        with pytest.raises(TimeoutError) as error:
            decides.check_subscribed(1.5)
        return str(error.value).removeprefix("[t/c] not subscribed after 1.5 s: ")

    assert reason() == "the consumer is not started"
    connection = Recorded("a:1")
    decides.connecting(connection)
    decides.asking("l:1")
    assert reason() == "a:1: no answer yet"
    decides.responded("l:1", None, 0)
    assert reason() == "nsqlookupd l:1: no valid answer"
    decides.responded("l:1", Listing(set()), 0)
    assert reason() == "nsqlookupd l:1: no nsqd has this topic yet"
    decides.closed(connection, ConnectionLost("connection refused", "a:1"), 0)
    assert reason() == "a:1: connection refused"
    connection = connect(decides, "a:1")
    assert decides.is_subscribed
    decides.check_subscribed(1.5)
    decides.stop(0)
    decides.closed(connection, LOST, 0)
    with pytest.raises(RuntimeError, match="stopped before it was subscribed"):
        decides.check_subscribed(1.5)


@pytest.mark.parametrize(("concurrency", "at_once", "warnings"), [(1, 1, 0), (3, 3, 0), (10, 3, 1)])
def test_more_handlers_than_messages_in_flight_are_logged(caplog, concurrency, at_once, warnings):
    assert coordinator(max_in_flight=3).handlers_at_once(concurrency) == at_once
    expected = "[t/c] concurrency=10: at most 3 handlers run at once, because max_in_flight is 3"
    assert caplog.messages == [expected] * warnings


def test_an_nsqd_that_sends_messages_without_end_is_disconnected():
    decides = coordinator(max_in_flight=2)
    connection = connect(decides, "a:1")
    connection.in_flight = 120
    decides.received(connection, 120, 0)
    connection.in_flight += 1
    with pytest.raises(ProtocolError, match="more messages than RDY permits: 121 are in flight"):
        decides.received(connection, 1, 0)
    decides.set_max_in_flight(0, 0)
    connection.in_flight = 120
    decides.received(connection, 1, 0)


def test_waiting_messages_of_a_lost_connection_leave_the_memory():
    decides = coordinator(["a:1", "b:1"])
    lost, kept = connect(decides, "a:1"), connect(decides, "b:1")
    decides.waiting.extend(Message(b"0" * 16, b"body", 0, 1, each) for each in (lost, kept))
    lost.is_closed = True
    decides.closed(lost, LOST, 0)
    assert [message.body for message in decides.waiting] == [b"", b"body"]
