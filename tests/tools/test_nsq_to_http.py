"""nsq_to_http between a real nsqd and real HTTP servers."""

import itertools
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsq_compat.client import Producer
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    with NsqdProcess(installed_nsqd(), tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def topic(nsqd: NsqdProcess) -> str:
    name = f"t{next(_numbers)}"
    nsqd.create_channel(name, "c")
    return name


@pytest.fixture
def publish(nsqd: NsqdProcess, topic: str) -> Callable[..., object]:
    def publish_all(*bodies: bytes) -> None:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish_many(topic, bodies)

    return publish_all


@pytest.fixture
def relay(start, nsqd, topic):
    return lambda *flags: start(
        "nsq_to_http", f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}", *flags
    )


@pytest.fixture
def stat(nsqd, topic):
    return lambda name: nsqd.channel_stats(topic, "c")[name]


def is_idle(stat):
    return stat("depth") == stat("in_flight_count") == stat("deferred_count") == 0


def test_every_message_is_posted_once_and_finished(relay, publish, target, stat):
    bodies = [b"%d" % number for number in range(500)]
    publish(*bodies)
    relay(f"--post={target.url}/x?y=z")
    wait_until(lambda: len(target.requests) == 500 and is_idle(stat))
    assert sorted(target.bodies) == sorted(bodies)
    assert {request.path for request in target.requests} == {"/x?y=z"}
    assert stat("requeue_count") == 0


def test_headers_are_nsqs_by_default(relay, publish, target):
    publish(b"x")
    relay(f"--post={target.url}", "--content-type=text/plain", "--header=X-A: b:c ", "--header=user-agent: me")
    wait_until(lambda: target.requests)
    headers = {name.lower(): value for name, value in target.requests[0].headers.items()}
    assert (headers["content-type"], headers["x-a"], headers["user-agent"]) == ("text/plain", "b:c", "me")


def test_no_message_is_finished_before_a_url_has_accepted_it(relay, publish, target, stat):
    target.status = 500
    publish(b"x")
    process = relay(
        f"--post={target.url}", "--consumer-opt=default_requeue_delay,0s", "--consumer-opt=max_backoff_duration,0s"
    )
    wait_until(lambda: len(target.requests) > 10)  # more often than go-nsq's max_attempts
    assert stat("depth") + stat("in_flight_count") + stat("deferred_count") == 1
    target.status = 201
    wait_until(lambda: is_idle(stat))
    process.terminate()
    _, log = process.communicate(timeout=20)
    assert "got status code 500" in log


def test_max_attempts_is_obeyed(relay, publish, target, stat):
    target.status = 500
    publish(b"x")
    relay(
        f"--post={target.url}",
        "--consumer-opt=default_requeue_delay,0s",
        "--consumer-opt=max_backoff_duration,0s",
        "--consumer-opt=max_attempts,3",
    )
    wait_until(lambda: is_idle(stat) and stat("requeue_count") == 3)
    assert len(target.requests) == 3


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_a_url_that_fails_does_not_affect_others(relay, publish, target, make_target, stat, mode):
    sick = make_target()
    sick.status = 503
    bodies = [b"%d" % number for number in range(300)]
    publish(*bodies)
    relay(f"--mode={mode}", f"--post={sick.url}", f"--post={target.url}")
    wait_until(lambda: is_idle(stat) and stat("message_count") == 300)
    assert Counter(target.bodies) == Counter(bodies)
    assert stat("requeue_count") == 0


def test_urls_take_turns(relay, publish, target, make_target):
    another = make_target()
    publish(*[b"x"] * 100)
    relay("--mode=round-robin", f"--post={target.url}", f"--post={another.url}")
    wait_until(lambda: len(target.requests) + len(another.requests) == 100)
    assert len(target.requests) == len(another.requests) == 50


def test_a_sample_of_0_sends_nothing(relay, publish, target, stat):
    publish(*[b"x"] * 50)
    relay(f"--post={target.url}", "--sample=0")
    wait_until(lambda: is_idle(stat))
    assert not target.requests


def test_timings_are_printed_and_a_pipe_shows_no_progress(relay, publish, target, make_target):
    another = make_target()
    publish(*[b"x"] * 202)
    process = relay(f"--get={target.url}/%s", f"--get={another.url}/%s", "--status-every=100", "--mode=round-robin")
    wait_until(lambda: len(target.requests) + len(another.requests) == 202)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert log.count("[aggregate]: finished 100 - 99th: ") == 2
    assert log.count(f"[{target.url}/%s]: finished 100 - 99th: ") == 1
    assert "\r" not in log


def test_a_signal_lets_requests_end_and_requeues_the_rest(relay, publish, target, stat):
    target.gate.clear()
    publish(*[b"x"] * 10)
    process = relay(f"--post={target.url}", "--n=2")
    wait_until(lambda: len(target.requests) == 2)
    process.send_signal(signal.SIGINT)
    target.gate.set()
    assert process.wait(20) == 0
    assert stat("depth") + len(target.requests) == 10
    assert stat("in_flight_count") == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--header=x"], "--header value format should be 'key=value'"),
        ([], "--topic and --channel are required"),
        (["--topic=t", "--content-type=x", "--get=x"], "--content-type only used with --post"),
        (["--topic=t", "--content-type=", "--post=x"], "--content-type requires a value when used"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (["--topic=t", "-n1", "--x"], "flag provided but not defined: -n1"),
        (["--topic=t", "--mode=hostpol"], "must be one of round-robin, hostpool, epsilon-greedy"),
    ],
)
def test_missing_options_are_refused_with_the_reason(start, flags, complaint):
    _, log = start("nsq_to_http", *flags).communicate(timeout=20)
    assert complaint in log


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--get or --post required"),
        (["--get=http://h/%s", "--post=http://h/"], "use --get or --post not both"),
        (["--get=http://h/"], "invalid GET address - must be a printf string"),
        (["--get=http://h/%s%s"], "invalid GET address - must be a printf string"),
        (["--post=http://h/", "--sample=1.1"], "ERROR: --sample must be between 0.0 and 1.0"),
        (["--post=http://h/", "--sample=nan"], "ERROR: --sample must be between 0.0 and 1.0"),
        (["--post=http://h/", "--n=0"], "no handlers"),
        (["--post=h"], "h: MissingSchema"),
        (["--post=http://h/", "--http-client-request-timeout=0"], "--http-client-request-timeout should be positive"),
        (["--post=http://h/", "--topic=a b"], "'a b' is not a valid topic name"),
        (
            ["--post=http://h/", "--lookupd-http-address=h:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
    ],
)
def test_impossible_options_are_refused_with_the_reason(start, flags, complaint):
    process = start("nsq_to_http", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", *flags)
    _, log = process.communicate(timeout=20)
    assert complaint in log
    assert process.returncode == 1


def test_the_version_is_printed():
    program = str(Path(sys.executable).with_name("nsq_to_http"))
    assert subprocess.run([program, "--version"], capture_output=True, check=True).stdout.startswith(b"nsq_to_http v")
