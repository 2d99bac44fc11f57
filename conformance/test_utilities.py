"""to_nsq, nsq_tail and nsq_stat, ours or Go's (``--utilities FOLDER``), with the nsqd to test."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.daemons import a_nsqd
from nsq_conformance.nsqd_process import NsqdProcess

Utility = Callable[[str], str]
Start = Callable[..., "subprocess.Popen[bytes]"]
WITHIN = 30


@pytest.fixture(scope="module")
def nsqd(request: pytest.FixtureRequest) -> Iterator[NsqdProcess]:
    """An nsqd with an address that is found without a name server: nsq_stat uses the announced one."""
    with a_nsqd(request, ["--broadcast-address=127.0.0.1"]) as process:
        yield process


@pytest.fixture
def publish(utility: Utility, nsqd: NsqdProcess) -> Callable[..., None]:
    """Publish data through the standard input of to_nsq."""

    def publish_input(topic: str, data: bytes, *flags: str, to: str = "") -> None:
        command = [utility("to_nsq"), f"--topic={topic}", f"--nsqd-tcp-address={to or nsqd.tcp_address}", *flags]
        done = subprocess.run(command, input=data, capture_output=True, timeout=WITHIN, check=False)
        assert done.returncode == 0, done.stderr

    return publish_input


def tailing(start: Start, nsqd: NsqdProcess, topic: str, *flags: str) -> "subprocess.Popen[bytes]":
    nsqd.create_channel(topic, "tail")  # so that nsq_tail gets messages published before it connects
    return start("nsq_tail", f"--topic={topic}", "--channel=tail", f"--nsqd-tcp-address={nsqd.tcp_address}", *flags)


def lines(process: "subprocess.Popen[bytes]", count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_nsq_tail_shows_messages_of_to_nsq(
    start: Start, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    tail = tailing(start, nsqd, topic)
    publish(topic, b"one\ntwo\r\n\n\xff\x00\n")
    assert sorted(lines(tail, 3)) == sorted([b"one\n", b"two\r\n", b"\xff\x00\n"])


def test_each_line_may_begin_with_its_topic(
    start: Start, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    tail = tailing(start, nsqd, topic, "--print-topic")
    publish(topic, b"x\n")
    assert lines(tail, 1) == [f"{topic} | x\n".encode()]


def test_nsq_tail_ends_after_the_given_number_of_messages(
    start: Start, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    tail = tailing(start, nsqd, topic, "--n=2")
    publish(topic, b"1\n2\n3\n4\n")
    out, _ = tail.communicate(timeout=WITHIN)
    assert len(out.splitlines()) == 2
    assert tail.returncode == 0


def test_a_signal_ends_nsq_tail_cleanly(
    start: Start, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    tail = tailing(start, nsqd, topic)
    publish(topic, b"x\n")
    assert lines(tail, 1) == [b"x\n"]
    os.kill(tail.pid, signal.SIGTERM)
    assert tail.wait(WITHIN) == 0
    eventually(lambda: nsqd.channel_stats(topic, "tail")["client_count"] == 0)
    stats = nsqd.channel_stats(topic, "tail")
    assert (stats["depth"], stats["in_flight_count"]) == (0, 0)


def test_records_may_end_with_any_byte(
    start: Start, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    tail = tailing(start, nsqd, topic)
    publish(topic, b"a,b,,c,", "--delimiter=,")
    assert sorted(lines(tail, 3)) == [b"a\n", b"b\n", b"c\n"]


def test_every_named_nsqd_gets_every_record(
    publish: Callable[..., None], nsqd: NsqdProcess, nsqd_command: str, topic: str, tmp_path: Path
) -> None:
    with NsqdProcess(nsqd_command, tmp_path) as another:
        for each in (nsqd, another):
            each.create_channel(topic, "c")
        publish(topic, b"1\n2\n3\n", f"--nsqd-tcp-address={another.tcp_address}")
        for each in (nsqd, another):
            eventually(partial(_has, each, topic, 3))


def _has(nsqd: NsqdProcess, topic: str, depth: int) -> bool:
    return bool(nsqd.channel_stats(topic, "c")["depth"] == depth)


@pytest.mark.parametrize(
    ("name", "flags", "complaint"),
    [
        ("to_nsq", [], b"--topic required"),
        ("to_nsq", ["--topic=t", "--delimiter=ab"], b"--delimiter must be a single byte"),
        ("to_nsq", ["--topic=t"], b"--nsqd-tcp-address required"),
        ("nsq_tail", ["--topic=t"], b"--nsqd-tcp-address or --lookupd-http-address required"),
        (
            "nsq_tail",
            ["--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--lookupd-http-address=127.0.0.1:1"],
            b"use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        ("nsq_tail", ["--nsqd-tcp-address=127.0.0.1:1"], b"--topic required"),
    ],
)
def test_missing_flags_are_reported(utility: Utility, name: str, flags: list[str], complaint: bytes) -> None:
    done = subprocess.run([utility(name), *flags], capture_output=True, timeout=WITHIN, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr


STAT_HEADER = [
    b"------rate------+----------------depth----------------+--------------metadata---------------",
    b"ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
]


def test_nsq_stat_prints_a_row_for_each_interval(
    utility: Utility, publish: Callable[..., None], nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.create_channel(topic, "c")
    publish(topic, b"1\n2\n3\n")
    eventually(partial(_has, nsqd, topic, 3))
    flags = [f"--topic={topic}", "--channel=c", f"--nsqd-http-address={nsqd.http_address}"]
    command = [utility("nsq_stat"), *flags, "--interval=100ms", "--count=2"]
    done = subprocess.run(command, capture_output=True, timeout=WITHIN, check=False)
    assert done.returncode == 0, done.stderr
    *header, first, second = done.stdout.splitlines()
    assert header == STAT_HEADER
    assert (
        first
        == second
        == b"      0       0 |       3       3       0     0     0 |       0       0            3       0"
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--topic=t"], b"--topic and --channel are required"),
        (["--topic=t", "--channel=c", "--interval=0"], b"--interval should be positive"),
        (["--topic=t", "--channel=c", "--count=0"], b"--count should be positive"),
        (["--topic=t", "--channel=c"], b"--nsqd-http-address or --lookupd-http-address required"),
        (
            ["--topic=t", "--channel=c", "--nsqd-http-address=http://127.0.0.1:1"],
            b"--nsqd-http-address error - address should not contain scheme",
        ),
    ],
)
def test_nsq_stat_reports_missing_flags(utility: Utility, flags: list[str], complaint: bytes) -> None:
    done = subprocess.run([utility("nsq_stat"), *flags], capture_output=True, timeout=WITHIN, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
