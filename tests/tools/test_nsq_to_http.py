"""nsq_to_http between a real nsqd and real HTTP servers: what they are sent, and what counts as arrived."""

import signal
from collections import Counter

import pytest

from nsq_compat.tools.nsq_to_http import HttpSender, NotSent, Options
from tests.client.waiting import wait_until
from tests.cluster import hostile

_BEFORE_THE_END_OF_HEADERS = [
    hostile.dripping_status,
    hostile.dripping_header,
    hostile.dripping_headers,
    hostile.continuing,
    hostile.silent,
]


@pytest.fixture
def relay(start, nsqd, topic):
    return lambda *flags: start(
        "nsq_to_http", f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}", *flags
    )


def test_every_message_is_posted_once_and_finished(relay, publish, target, stat, is_idle):
    bodies = [b"%d" % number for number in range(500)]
    publish(*bodies)
    relay(f"--post={target.url}/x?y=z")
    wait_until(lambda: len(target.requests) == 500 and is_idle())
    assert sorted(target.bodies) == sorted(bodies)
    assert {request.path for request in target.requests} == {"/x?y=z"}
    assert stat("requeue_count") == 0


def test_no_message_is_finished_before_a_url_has_accepted_it(relay, publish, target, stat, is_idle):
    target.status = 500
    publish(b"x")
    process = relay(
        f"--post={target.url}", "--consumer-opt=default_requeue_delay,0s", "--consumer-opt=max_backoff_duration,0s"
    )
    wait_until(lambda: len(target.requests) > 10)  # more often than go-nsq's max_attempts
    assert not is_idle()
    target.status = 201
    wait_until(is_idle)
    process.terminate()
    _, log = process.communicate(timeout=20)
    assert "got status code 500" in log


def test_max_attempts_is_obeyed(relay, publish, target, stat, is_idle):
    target.status = 500
    publish(b"x")
    relay(
        f"--post={target.url}",
        "--consumer-opt=default_requeue_delay,0s",
        "--consumer-opt=max_backoff_duration,0s",
        "--consumer-opt=max_attempts,3",
    )
    wait_until(lambda: is_idle() and stat("requeue_count") == 3)
    assert len(target.requests) == 3


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_a_url_that_fails_does_not_affect_others(relay, publish, target, make_target, stat, is_idle, mode):
    sick = make_target()
    sick.status = 503
    bodies = [b"%d" % number for number in range(300)]
    publish(*bodies)
    relay(f"--mode={mode}", f"--post={sick.url}", f"--post={target.url}")
    wait_until(lambda: is_idle() and stat("message_count") == 300)
    assert Counter(target.bodies) == Counter(bodies)
    assert stat("requeue_count") == 0


def test_a_sample_of_0_sends_nothing(relay, publish, target, stat, is_idle):
    publish(*[b"x"] * 50)
    relay(f"--post={target.url}", "--sample=0")
    wait_until(is_idle)
    assert not target.requests


def test_urls_take_turns_timings_are_printed_and_a_pipe_shows_no_progress(relay, publish, target, make_target):
    another = make_target()
    publish(*[b"x"] * 202)
    process = relay(f"--get={target.url}/%s", f"--get={another.url}/%s", "--status-every=100", "--mode=round-robin")
    wait_until(lambda: len(target.requests) + len(another.requests) == 202)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert len(target.requests) == len(another.requests) == 101
    assert log.count("[aggregate]: finished 100 - 99th: ") == 2
    assert log.count(f"[{target.url}/%s]: finished 100 - 99th: ") == 1
    assert "\r" not in log


def test_a_signal_lets_requests_end_and_stat_the_rest(relay, publish, target, stat, is_idle):
    target.gate.clear()
    publish(*[b"x"] * 10)
    process = relay(f"--post={target.url}", "--n=2")
    wait_until(lambda: len(target.requests) == 2)
    process.send_signal(signal.SIGINT)
    target.gate.set()
    assert process.wait(20) == 0
    assert stat("depth") + len(target.requests) == 10
    assert stat("in_flight_count") == 0


# --- Sending ----------------------------------------------------------------------------------------------------------


def sender(method="POST", *headers, request_timeout=10.0, **options):
    timeout = int(request_timeout * 10**9)
    post = ("http://h/",) if method == "POST" else ()
    return HttpSender(Options(post=post, header=headers, http_client_request_timeout=timeout, n=2, **options))


def test_a_message_is_the_body_of_a_post(target):
    sender("POST", "User-Agent: me", content_type="a/b").send(target.url, b"\xff\0")
    (request,) = target.requests
    assert (request.method, request.body) == ("POST", b"\xff\0")
    assert request.headers == {
        "Host": target.address,
        "User-Agent": "me",
        "Content-Type": "a/b",
        "Content-Length": "2",
        "Accept-Encoding": "gzip",
    }


def test_the_last_of_several_headers_is_sent_whatever_its_case(target):
    sender("POST", "User-Agent: one", "user-agent: two").send(target.url, b"x")
    assert [value for name, value in target.requests[0].headers.items() if name.lower() == "user-agent"] == ["two"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("a b&c/é%".encode(), "/a+b%26c%2F%C3%A9%25/x%20y"),
        (b"\xff\n", "/%FF%0A/x%20y"),
        (b"-_.~", "/-_.~/x%20y"),
        (b"%s", "/%25s/x%20y"),
    ],
)
@pytest.mark.parametrize("address", ["/%s/x%20y", "/%s/x%%20y"])
def test_a_message_is_put_into_the_url_of_a_get(target, address, body, path):
    sender("GET").send(target.url + address, body)
    assert (target.requests[0].method, target.requests[0].path) == ("GET", path)


@pytest.mark.parametrize(("address", "body"), [("/a/%s", b".."), ("/a/%s/b?c", b"."), ("/a/.%s", b".")])
def test_a_message_that_would_lead_to_another_path_is_not_sent(target, address, body):
    with pytest.raises(NotSent, match="the message would lead to another path"):
        sender("GET").send(target.url + address, body)
    assert target.requests == []


@pytest.mark.parametrize(("address", "path"), [("/a/b%s", "/a/b.."), ("/a?b=/%s", "/a?b=/..")])
def test_dots_that_lead_to_no_other_path_are_sent(target, address, path):
    sender("GET").send(target.url + address, b"..")
    assert target.requests[0].path == path


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_accepts_the_message(target, method, status):
    target.status = status
    sender(method).send(f"{target.url}/%s", b"x")
    assert len(target.requests) == 1


@pytest.mark.parametrize("status", [300, 304, 400, 404, 429, 500, 503])
def test_any_other_status_does_not_accept_it(target, status):
    target.status = status
    with pytest.raises(NotSent, match=f"^got status code {status}$"):
        sender().send(target.url, b"x")
    assert len(target.requests) == 1


def test_a_redirect_that_keeps_the_body_is_followed(target, make_target):
    elsewhere = make_target()
    target.status, target.headers = 307, {"Location": f"{elsewhere.url}/there"}
    sender().send(target.url, b"x")
    assert [(each.method, each.path, each.body) for each in elsewhere.requests] == [("POST", "/there", b"x")]


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_drops_the_body_does_not_accept_the_message(target, make_target, status):
    elsewhere = make_target()
    target.status, target.headers = status, {"Location": f"{elsewhere.url}/there"}
    with pytest.raises(NotSent, match=f"^got status code {status}$"):
        sender().send(target.url, b"x")
    assert elsewhere.requests == []
    sender("GET").send(f"{target.url}/%s", b"x")
    assert [(each.method, each.path) for each in elsewhere.requests] == [("GET", "/there")]


@pytest.mark.parametrize("status", [307, 308])
def test_secret_headers_are_for_the_server_of_the_url(target, make_target, status):
    secrets = {"X-Api-Key": "sesame", "Authorization": "Bearer sesame", "Cookie": "a=b", "X-Password": "sesame"}
    secrets |= {"X-Sig": "sesame", "X-PW": "sesame", "X-Otp": "1"}
    headers = tuple(f"{name}: {value}" for name, value in {**secrets, "X-Of": "me", "X-Spinner": "no"}.items())
    posting = sender("POST", *headers)
    elsewhere = make_target()
    target.status, target.headers = status, {"Location": f"{elsewhere.url}/there"}
    posting.send(target.url, b"x")
    assert secrets.items() <= dict(target.requests[0].headers).items()
    assert not secrets.keys() & elsewhere.requests[0].headers.keys()
    assert elsewhere.requests[0].headers["X-Spinner"] == "no"
    assert (elsewhere.requests[0].headers["X-Of"], elsewhere.requests[0].body) == ("me", b"x")


def test_a_connection_is_used_again_whatever_the_answer_is(target):
    posting = sender()
    for status, answer in ((200, b"x" * 100_000), (500, b"no"), (204, b""), (200, b"")):
        target.status, target.answer = status, answer
        try:
            posting.send(target.url, b"x")
        except NotSent:
            assert status == 500
    assert len({request.client for request in target.requests}) == 1


def test_an_endless_answer_is_not_read_to_its_end(target):
    target.answer = b"x" * 5_000_000
    posting = sender()
    for _ in range(2):
        posting.send(target.url, b"x")
    assert len({request.client for request in target.requests}) == 2


def test_no_cookies_are_kept(target):
    target.headers = {"Set-Cookie": "a=b; Path=/"}
    posting = sender()
    for _ in range(2):
        posting.send(target.url, b"x")
    assert "Cookie" not in target.requests[1].headers


def test_a_connection_that_ends_without_an_answer_is_replaced_once(target):
    target.closing_count = 1
    sender().send(target.url, b"x")
    assert target.bodies == [b"x", b"x"]
    target.closing_count = 2
    with pytest.raises(NotSent):
        sender().send(target.url, b"y")


def test_a_server_that_does_not_answer_in_time_has_not_accepted_it(target):
    target.gate.clear()
    with pytest.raises(NotSent, match="^timeout$"):
        sender(request_timeout=0.1).send(target.url, b"x")


def test_an_error_does_not_show_the_message(target):
    target.close()
    with pytest.raises(NotSent, match="^connection refused$"):
        sender("GET").send(f"{target.url}/%s", b"secret")


@pytest.mark.parametrize("address", ["", "x", "ftp://x/", "http://", "http://[::1", "http://h:x/"])
def test_a_wrong_address_is_refused_at_the_start(address):
    with pytest.raises(NotSent):
        sender().check(address)


def test_a_wrong_header_is_refused_at_the_start():
    with pytest.raises(NotSent):
        sender("POST", "A: b\nc").check("http://h/")


def test_errors_do_not_show_secrets():
    with pytest.raises(NotSent) as caught:
        sender().check("http://me:secret@h:x/?key=secret")
    assert "secret" not in str(caught.value)


def test_a_check_sends_nothing(target):
    sender().check(target.url)
    assert not target.requests


@pytest.mark.parametrize("answer", [*_BEFORE_THE_END_OF_HEADERS, hostile.dripping_redirects])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_whose_headers_are_drawn_out_is_a_timeout(answer, method):
    with hostile.HostileServer(answer) as server, pytest.raises(NotSent, match="^timeout$"):
        sender(method, request_timeout=hostile.DEADLINE).send(f"http://{server.address}/%s", b"x")


@pytest.mark.parametrize("answer", [each for each in hostile.DRIPPING if each not in _BEFORE_THE_END_OF_HEADERS])
def test_a_drawn_out_body_is_not_waited_for(answer):
    with hostile.HostileServer(answer) as server:
        sender(request_timeout=hostile.STEP * hostile.STEPS * 0.7).send(f"http://{server.address}/", b"x")


def test_a_tls_handshake_that_is_drawn_out_is_a_timeout():
    with hostile.HostileServer(hostile.dripping_handshake) as server, pytest.raises(NotSent, match="^timeout$"):
        sender(request_timeout=hostile.DEADLINE).send(f"https://{server.address}/", b"x")


@pytest.mark.parametrize("answer", [hostile.redirecting, hostile.redirecting_with_endless_body])
def test_redirects_in_a_loop_end_after_ten_and_their_bodies_are_not_read(answer):
    with hostile.HostileServer(answer) as server:
        with pytest.raises(NotSent, match="more than 10 redirects"):
            sender(request_timeout=20).send(f"http://{server.address}/", b"x")
        assert server.requests == 11


def test_headers_without_end_are_refused():
    with hostile.HostileServer(hostile.endless_headers) as server, pytest.raises(NotSent, match="no answer in HTTP"):
        sender(request_timeout=20).send(f"http://{server.address}/", b"x")
