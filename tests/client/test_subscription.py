"""A consumer of several nsqd: connections and the distribution of RDY."""

import pytest

from nsq_compat.client.message import Message
from nsq_compat.client.ready import Pace
from nsq_compat.protocol.frames import OK, error_frame
from tests.client.conftest import StartConsumer
from tests.client.fake_lookupd import FakeLookupd
from tests.client.fake_nsqd import CLOSE, FakeNsqd, MakeNsqd
from tests.client.waiting import wait_until


def nothing(message: Message) -> None:
    pass


def subscribed(fake: FakeNsqd) -> bool:
    return bool(fake.said("RDY"))


def waits_in(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The delays of reconnections, in seconds."""
    return [record.args[-1] for record in caplog.records if "re-connecting" in record.msg]  # type: ignore[index,misc]


# --- Connecting -------------------------------------------------------------------------------------------------------


def test_identify_comes_first_then_sub_then_ready_one(fake, start_consumer):
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, max_in_flight=100)
    wait_until(lambda: subscribed(fake))
    assert fake.peer.lines == ["IDENTIFY", "SUB t c", "RDY 1"]


def test_identify_has_the_clients_options(fake, start_consumer):
    start_consumer(
        nothing,
        nsqd_tcp_addresses=fake.address,
        client_id="me",
        hostname="me.example",
        user_agent="mine/1",
        heartbeat_interval=5,
        msg_timeout=7.5,
        sample_rate=10,
        output_buffer_size=1000,
        output_buffer_timeout=30,
    )
    wait_until(lambda: subscribed(fake))
    said = fake.peer.bodies[0]
    for part in (
        b'"client_id":"me"',
        b'"hostname":"me.example"',
        b'"user_agent":"mine/1"',
        b'"heartbeat_interval":5000',
        b'"msg_timeout":7500',
        b'"sample_rate":10',
        b'"output_buffer_size":1000',
        b'"output_buffer_timeout":30',
        b'"feature_negotiation":true',
    ):
        assert part in said


def test_authorization_comes_before_sub_if_nsqd_requires_it(make_nsqd, start_consumer):
    fake = make_nsqd(auth_required=True)
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, auth_secret="secret")
    wait_until(lambda: subscribed(fake))
    assert fake.peer.lines[:3] == ["IDENTIFY", "AUTH", "SUB t c"]
    assert b"secret" in fake.peer.bodies


def test_named_nodes_need_no_lookupd_and_each_has_one_connection(make_nsqd, start_consumer):
    fakes = [make_nsqd() for _ in range(3)]
    start_consumer(nothing, nsqd_tcp_addresses=[fake.address for fake in fakes] * 2, max_in_flight=10)
    wait_until(lambda: all(map(subscribed, fakes)))
    assert [len(fake.peers) for fake in fakes] == [1, 1, 1]


def test_discovered_nodes_are_connected_to_once_however_often_they_are_found(fake, lookupd, start_consumer):
    lookupd.addresses = [fake.address]
    start_consumer(
        nothing, nsqd_tcp_addresses=fake.address, lookupd_http_addresses=lookupd.address, lookupd_poll_interval=0.01
    )
    wait_until(lambda: subscribed(fake) and len(lookupd.asked) > 5)
    assert len(fake.peers) == 1


# --- Reconnecting -----------------------------------------------------------------------------------------------------


def test_a_named_node_is_retried_with_a_doubling_delay(make_nsqd, start_consumer, caplog):
    caplog.set_level("INFO")
    fake = make_nsqd({"SUB": CLOSE})
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01, max_reconnect_delay=0.05)
    wait_until(lambda: len(waits_in(caplog)) >= 5)
    assert waits_in(caplog)[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_a_successful_connection_resets_the_delay(make_nsqd, start_consumer, caplog):
    caplog.set_level("INFO")
    fake = make_nsqd({"SUB": [CLOSE, CLOSE, OK]})
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    fake.peer.close()
    wait_until(lambda: len(fake.peers) == 4)
    assert waits_in(caplog) == [0.01, 0.02, 0.01]


def test_a_discovered_node_is_retried_only_when_a_later_poll_lists_it(fake, lookupd, start_consumer):
    lookupd.addresses = [fake.address]
    consumer = start_consumer(nothing, lookupd_http_addresses=lookupd.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    lookupd.addresses = []
    fake.peer.close()
    wait_until(lambda: not consumer.connections)

    def poll() -> int:
        # A poll is skipped while the last one is unanswered.
        consumer.poll_lookupd()
        return len(lookupd.asked)

    wait_until(lambda: poll() >= 5)
    assert len(fake.peers) == 1
    lookupd.addresses = [fake.address]
    wait_until(lambda: poll() and len(fake.peers) == 2)


def test_a_node_that_is_no_longer_listed_stays_connected(fake, lookupd, start_consumer):
    lookupd.addresses = [fake.address]
    consumer = start_consumer(nothing, lookupd_http_addresses=lookupd.address, lookupd_poll_interval=0.01)
    wait_until(lambda: subscribed(fake))
    lookupd.addresses = []
    polls = len(lookupd.asked)
    wait_until(lambda: len(lookupd.asked) > polls + 3)
    assert consumer.connections


def test_consuming_continues_while_every_nsqlookupd_is_down(fake, start_consumer):
    lookupd, bodies = FakeLookupd(), []
    lookupd.addresses = [fake.address]
    start_consumer(
        lambda message: bodies.append(message.body),
        lookupd_http_addresses=[lookupd.address, "127.0.0.1:1"],
        lookupd_poll_interval=0.01,
    )
    wait_until(lambda: subscribed(fake))
    lookupd.close()
    fake.send_messages([b"body"])
    wait_until(lambda: bodies)


def test_a_slow_nsqlookupd_delays_no_other_and_is_not_queried_again_before_it_responds(fake, lookupd, start_consumer):
    slow = FakeLookupd()
    slow.held = True
    lookupd.addresses = [fake.address]
    addresses = [slow.address, lookupd.address]
    start_consumer(nothing, lookupd_http_addresses=addresses, lookupd_poll_interval=0.01, lookupd_request_timeout=30)
    wait_until(lambda: subscribed(fake) and len(lookupd.asked) > 5)
    assert slow.asked == ["t"]
    slow.close()


def test_a_dead_node_does_not_affect_the_others(make_nsqd, start_consumer):
    silent, good = make_nsqd({"IDENTIFY": None}), make_nsqd()
    start_consumer(nothing, nsqd_tcp_addresses=[silent.address, "127.0.0.1:1", good.address], timeout=30)
    wait_until(lambda: subscribed(good))


def test_a_node_that_does_not_respond_is_given_up_in_time(make_nsqd, start_consumer):
    fake = make_nsqd({"SUB": None})
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, timeout=0.1, reconnect_delay=0.01)
    wait_until(lambda: len(fake.peers) > 1)


def test_a_half_open_connection_fails_after_two_heartbeats(fake, start_consumer, caplog):
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, heartbeat_interval=1, reconnect_delay=0.01)
    wait_until(lambda: len(fake.peers) == 2)
    assert "silent for 2 s" in caplog.text


def test_heartbeats_are_answered(fake, start_consumer):
    start_consumer(nothing, nsqd_tcp_addresses=fake.address)
    wait_until(lambda: subscribed(fake))
    fake.beat()
    fake.beat()
    wait_until(lambda: fake.peer.said("NOP") == ["NOP", "NOP"])


@pytest.mark.parametrize("code", [b"E_INVALID cannot RDY in current state", b"E_BAD_TOPIC", b"E_SOMETHING_NEW"])
def test_an_error_ends_the_connection(fake, start_consumer, code):
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    fake.peer.send(error_frame(code))
    wait_until(lambda: len(fake.peers) == 2)


@pytest.mark.parametrize("code", [b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"])
def test_failed_fin_req_and_touch_are_counted_and_do_not_end_the_connection(fake, start_consumer, code):
    consumer = start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    fake.peer.send(error_frame(code + b" X 0000000000000000 failed ID not in flight"))
    (connection,) = consumer.connections
    wait_until(lambda: connection.rejected_count == 1)
    fake.beat()
    wait_until(lambda: fake.peer.said("NOP"))
    assert len(fake.peers) == 1


def test_an_nsqd_that_refuses_without_end_does_not_fill_the_log(fake, start_consumer, caplog):
    consumer = start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    for _ in range(20):
        fake.peer.send(250 * error_frame(b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight"))
    (connection,) = consumer.connections
    wait_until(lambda: connection.rejected_count == 5000)
    assert caplog.text.count("E_FIN_FAILED") == 1000 + 3  # 1024, 2048, 4096
    assert "(error 4096 of this connection; not all are logged)" in caplog.text


def test_garbage_ends_only_its_connection(fake, start_consumer):
    start_consumer(nothing, nsqd_tcp_addresses=fake.address, reconnect_delay=0.01)
    wait_until(lambda: subscribed(fake))
    fake.peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    wait_until(lambda: len(fake.peers) == 2 and subscribed(fake))


# --- Sharing max_in_flight --------------------------------------------------------------------------------------------


def test_max_in_flight_is_shared_and_never_more_than_a_node_allows(make_nsqd, start_consumer):
    a, b = make_nsqd(), make_nsqd(max_rdy_count=3)
    start_consumer(nothing, nsqd_tcp_addresses=[a.address, b.address], max_in_flight=20)
    wait_until(lambda: subscribed(a) and subscribed(b))
    a.send_messages([b"x"])
    b.send_messages([b"x"])
    wait_until(lambda: a.peer.said("RDY")[-1] == "RDY 10" and b.peer.said("RDY")[-1] == "RDY 3")


def test_a_lost_connections_share_goes_to_the_others(make_nsqd, start_consumer):
    a, b = make_nsqd(), make_nsqd()
    start_consumer(nothing, nsqd_tcp_addresses=[a.address, b.address], max_in_flight=20)
    wait_until(lambda: subscribed(a) and subscribed(b))
    a.send_messages([b"x"])
    wait_until(lambda: a.peer.said("RDY")[-1] == "RDY 10")
    b.peer.close()
    wait_until(lambda: a.peer.said("RDY")[-1] == "RDY 20")


def test_with_fewer_permits_than_nodes_some_have_ready_one(make_nsqd, start_consumer):
    fakes = [make_nsqd() for _ in range(4)]
    consumer = start_consumer(nothing, nsqd_tcp_addresses=[fake.address for fake in fakes], max_in_flight=2)
    wait_until(lambda: len(consumer.connections) == 4)
    wait_until(lambda: sum(subscribed(fake) for fake in fakes) == 2)


# --- Backing off ------------------------------------------------------------------------------------------------------


def test_failures_stop_all_nodes_then_one_is_tested_then_all_resume(make_nsqd, start_consumer):
    a, b = make_nsqd(), make_nsqd()
    failing = True
    consumer = start_consumer(
        lambda message: not failing,
        nsqd_tcp_addresses=[a.address, b.address],
        max_in_flight=20,
        first_backoff_duration=0.05,
    )
    wait_until(lambda: subscribed(a) and subscribed(b))
    for fake in (a, b):
        fake.send_messages([b"x"])
    wait_until(lambda: a.peer.said("REQ") and b.peer.said("REQ"))
    wait_until(lambda: consumer._coordinator.backoff.pace is Pace.TESTING)
    wait_until(lambda: sorted(fake.peer.said("RDY")[-1] for fake in (a, b)) == ["RDY 0", "RDY 1"])
    asked = a if a.peer.said("RDY")[-1] == "RDY 1" else b
    failing = False
    asked.send_messages([b"x"])
    wait_until(lambda: a.peer.said("RDY")[-1] == b.peer.said("RDY")[-1] == "RDY 10")
    assert consumer._coordinator.backoff.pace is Pace.FLOWING


def test_a_requeue_without_backoff_does_not_change_the_pace(fake, start_consumer):
    consumer = start_consumer(lambda message: message.requeue(backoff=False), nsqd_tcp_addresses=fake.address)
    fake.send_messages([b"x"])
    wait_until(lambda: fake.peer.said("REQ"))
    assert consumer._coordinator.backoff.pace is Pace.FLOWING


def test_backing_off_can_be_turned_off(fake: FakeNsqd, start_consumer: StartConsumer, make_nsqd: MakeNsqd):
    consumer = start_consumer(lambda message: False, nsqd_tcp_addresses=fake.address, backoff=False)
    fake.send_messages([b"x"])
    wait_until(lambda: fake.peer.said("REQ"))
    assert consumer._coordinator.backoff.pace is Pace.FLOWING
