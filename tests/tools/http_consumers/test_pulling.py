"""nsq_pull as a process before a real nsqd, with clients of every kind; and the values of `wait`."""

import json
import signal
import socket

import pytest

from nsq_compat.tools.http_consumers.pulling import MAX_WAIT_SECONDS, read_wait
from nsq_compat.web.application import ApiError
from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from tests.client.waiting import wait_until

LARGE = b"x" * 400_000
WRONG = (
    ("GET", "/put", 400, b"missing data\n"),
    ("GET", "/put?data=", 400, b"missing data\n"),
    ("GET", "/mget?num_items=0", 400, b"number of items must be > 0\n"),
    ("GET", "/mget?num_items=x", 400, b"number of items must be > 0\n"),
    ("GET", "/mget?separator=", 400, b"separator must not be empty\n"),
    ("GET", "/get?wait=-1", 400, b"wait must not be negative\n"),
    ("GET", "/get?wait=soon", 400, b"wait must be seconds, or a duration such as 2s\n"),
    ("GET", "/get?a=%zz", 400, b"INVALID_REQUEST\n"),
    ("DELETE", "/get", 405, b"method not allowed\n"),
    ("GET", "/dump", 404, b"not found\n"),
    ("GET", "/ping", 200, b"OK"),
)


@pytest.fixture
def pull(start_consumer, topic):
    return start_consumer("nsq_pull", f"--topic={topic}", "--channel=c")


def is_connected(nsqd, topic):
    return nsqd.channel_stats(topic, "c")["client_count"] == 1


def test_a_message_that_is_put_can_be_got_and_is_finished(pull, nsqd, topic):
    assert pull.ask("/put", b"posted \xff\n") == (200, b"")
    assert pull.ask("/get?wait=20") == (200, b"posted \xff\n")
    assert pull.ask("/put?data=a%20b%26c") == (200, b"")
    assert pull.ask("/get?wait=20s") == (200, b"a b&c")
    wait_until(lambda: nsqd.unfinished(topic) == 0)
    assert nsqd.channel_stats(topic, "c")["requeue_count"] == 0


def test_an_empty_queue_gives_an_empty_answer(pull):
    assert pull.ask("/get") == (200, b"")
    for number in ("5", "05", "9" * 5000):
        assert pull.ask(f"/mget?num_items={number}&wait=0") == (200, b"")


def test_no_message_is_taken_from_nsqd_before_a_request(pull, nsqd, topic):
    wait_until(lambda: is_connected(nsqd, topic))
    assert pull.ask("/get?wait=0") == (200, b"")
    nsqd.publish(topic, b"1", b"2")
    assert pull.ask("/get?wait=20") == (200, b"1")
    wait_until(lambda: nsqd.waiting(topic) == 1)


def test_a_waiting_request_gets_a_message_published_meanwhile(pull, nsqd, topic):
    with pull.call("/get?wait=60") as waiting:
        wait_until(lambda: is_connected(nsqd, topic))
        nsqd.publish(topic, b"at last")
        answer = waiting.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nat last")


def test_several_messages_can_be_got_with_a_separator(pull, nsqd, topic):
    assert pull.ask("/mput", b"1\n2\n\n3\n") == (200, b"")
    assert pull.ask("/mget?num_items=2&wait=20") == (200, b"1\n2")
    assert pull.ask("/mput?separator=--&data=4--5") == (200, b"")
    assert pull.ask("/mget?items=9&wait=20&separator=%7C") == (200, b"3|4|5")
    wait_until(lambda: nsqd.unfinished(topic) == 0)


def test_a_request_cannot_put_so_many_messages_that_others_wait(pull, nsqd, topic):
    # 2.6 million of them held up all clients for two seconds.
    assert pull.ask("/mput?separator=a", b"ba" * 100_000) == (413, b"more than 100000 messages\n")
    assert pull.ask("/mput?separator=a", b"ba" * 99_999) == (200, b"")
    wait_until(lambda: nsqd.unfinished(topic) == 99_999)


def test_a_connection_can_carry_many_requests(pull, nsqd, topic):
    nsqd.publish(topic, *(b"%d" % number for number in range(20)))
    got = []
    with socket.create_connection(("127.0.0.1", int(pull.http_address.rpartition(":")[2])), timeout=30) as caller:
        for _ in range(20):
            caller.sendall(b"GET /get?wait=20 HTTP/1.1\r\nHost: h\r\n\r\n")
            got.append(caller.recv(65536).rpartition(b"\r\n")[2])
    assert sorted(map(int, got)) == list(range(20))
    wait_until(lambda: nsqd.unfinished(topic) == 0)


def test_a_message_for_a_client_that_has_left_is_not_lost(pull, nsqd, topic):
    pull.call("/get?wait=60").close()
    wait_until(lambda: is_connected(nsqd, topic))
    nsqd.publish(topic, b"kept")
    assert pull.ask("/get?wait=20") == (200, b"kept")


def test_messages_that_a_leaving_client_has_not_read_are_requeued_at_once(pull, nsqd, topic):
    nsqd.publish(topic, *[LARGE] * 30)
    caller = pull.call("/mget?num_items=30&wait=20", receive_buffer=4096)
    assert caller.recv(15) == b"HTTP/1.1 200 OK"
    wait_until(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 30)
    caller.close()
    wait_until(lambda: nsqd.waiting(topic) == 30)
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["requeue_count"], stats["timeout_count"]) == (30, 0)
    # Those that came too late for the answer do not count: nobody was sent them.
    wait_until(lambda: b"returned:0\n" not in pull.ask("/stats")[1])


def test_a_client_that_reads_nothing_is_disconnected_and_its_messages_requeued(start_consumer, nsqd, topic):
    pull = start_consumer("nsq_pull", f"--topic={topic}", "--channel=c", "--client-timeout=100ms")
    nsqd.publish(topic, *[LARGE] * 30)
    with pull.call("/mget?num_items=30&wait=20", receive_buffer=4096) as stalled:
        assert stalled.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: nsqd.waiting(topic) == 30)


def test_when_killed_with_an_answer_half_written_it_has_finished_nothing(start_consumer, nsqd, topic):
    pull = start_consumer("nsq_pull", f"--topic={topic}", "--channel=c", "--consumer-opt=msg_timeout,1s")
    nsqd.publish(topic, *[LARGE] * 30)
    with pull.call("/mget?num_items=30&wait=20", receive_buffer=4096) as caller:
        assert caller.recv(15) == b"HTTP/1.1 200 OK"
        pull.kill()
        wait_until(lambda: nsqd.waiting(topic) == 30)


def test_sigterm_answers_waiting_requests_and_stops(pull, nsqd, topic):
    with pull.call("/get?wait=60") as waiting:
        wait_until(lambda: is_connected(nsqd, topic))
        pull.send_signal(signal.SIGTERM)
        answer = waiting.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close\r\n" in answer
    assert pull.stop() == 0


def test_wrong_requests_are_answered_with_the_reason(pull):
    for method, target, status, text in WRONG:
        assert pull.ask(target, method=method) == (status, text)


def test_a_message_too_large_for_nsqd_is_answered_with_400(pull):
    status, text = pull.ask("/put", b"x" * (1 << 20) + b"x")
    assert status == 400
    assert b"E_BAD_MESSAGE" in text
    assert pull.ask("/put", b"x" * (5 << 20) + b"x")[0] == 413


def test_a_message_that_no_nsqd_accepts_is_answered_with_503(start_consumer, topic):
    flags = (f"--topic={topic}", "--channel=c", "--destination-nsqd-tcp-address=127.0.0.1:1")
    nowhere = start_consumer("nsq_pull", *flags)
    status, text = nowhere.ask("/put", b"x")
    assert (status, b"127.0.0.1:1: connection refused" in text) == (503, True)


def test_with_nsqlookupd_it_needs_a_destination_for_puts(topic):
    options = [f"--topic={topic}", "--channel=c", "--lookupd-http-address=127.0.0.1:1"]
    with HttpConsumerProcess(installed("nsq_pull"), options=options) as pull:
        assert pull.ask("/put", b"x") == (501, b"no --destination-nsqd-tcp-address to put to\n")
        assert pull.ask("/get?wait=0") == (200, b"")


def test_the_stats_can_be_read_and_reset(pull):
    pull.ask("/put", b"x")
    pull.ask("/get?wait=20")
    pull.ask("/get?wait=0")
    wait_until(lambda: b"in_flight:0" in pull.ask("/stats")[1])
    assert pull.ask("/stats")[1] == b"puts:1\ngets:1\nempty:1\nreturned:0\nin_flight:0\n"
    assert json.loads(pull.ask("/stats?format=json")[1])["puts"] == 1
    assert pull.ask("/stats?reset=1") == (200, b"")
    assert json.loads(pull.ask("/stats?format=json")[1])["puts"] == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("2.5", 2.5), ("2500ms", 2.5), ("1m", 60), ("1e9", MAX_WAIT_SECONDS), ("inf", MAX_WAIT_SECONDS)],
)
def test_a_wait_is_in_seconds_or_has_a_unit(text, seconds):
    assert read_wait(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "-1s", "nan", "1 s", "٣s"])
def test_other_values_are_refused(text):
    with pytest.raises(ApiError):
        read_wait(text)
