"""nsq_to_file as a process: topics that are found, signals, disks that fail, and what Go's refuses or loses."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_compat.client import Consumer, Producer
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("nsq_to_file"))
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start it with the output directory ``output`` and names that hold nothing but the topic."""
    with ExitStack() as processes:

        def start_it(*flags: str) -> "subprocess.Popen[str]":
            folder = f"--output-dir={tmp_path / 'output'}"
            command = [PROGRAM, folder, "--filename-format=<TOPIC><REV>", "--sync-interval=100ms", *flags]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start_it


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    (tmp_path / "nsqd").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "nsqd") as process:
        process.create_channel("t", "nsq_to_file")
        yield process


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


def publish(nsqd: NsqdProcess, topic: str, *bodies: bytes) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, list(bodies))


def end(process: "subprocess.Popen[str]") -> str:
    """SIGTERM; returns what it has logged."""
    process.terminate()
    output, log = process.communicate(timeout=40)
    assert (process.returncode, output) == (0, ""), log
    return log


def lines(folder: Path) -> dict[str, list[bytes]]:
    """By file below a folder, in any order."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): sorted(path.read_bytes().splitlines()) for path in files}


def has_nothing_left(nsqd: NsqdProcess, topic: str = "t") -> bool:
    try:
        stats = nsqd.channel_stats(topic, "nsq_to_file")
    except LookupError:
        return False
    return (stats["depth"], stats["in_flight_count"]) == (0, 0)


# --- Topics that are found --------------------------------------------------------------------------------------------


def test_topics_are_found_at_once_and_later_and_only_those_that_match(start, tmp_path, lookupd):
    (tmp_path / "nsqd").mkdir()
    options = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    with NsqdProcess(installed_nsqd(), tmp_path / "nsqd", options=options) as nsqd:
        publish(nsqd, "orders.a", b"1")
        publish(nsqd, "other", b"2")
        wait_until(lambda: len(lookupd.get("/topics")["topics"]) == 2)
        process = start(
            # An nsqlookupd that is down does not matter.
            "--lookupd-http-address=127.0.0.1:1",
            f"--lookupd-http-address={lookupd.http_address}",
            "--topic-pattern=^orders",
            "--topic-refresh=500ms",
            "--consumer-opt=lookupd_poll_interval,500ms",
        )
        wait_until(lambda: has_nothing_left(nsqd, "orders.a"))
        publish(nsqd, "orders.b", b"3")
        wait_until(lambda: has_nothing_left(nsqd, "orders.b"))
        log = end(process)
    assert lines(tmp_path / "output") == {"orders.a": [b"1"], "orders.b": [b"3"]}
    assert log.count("skipping topic other (doesn't match pattern ^orders)") == 1


def test_while_no_nsqlookupd_answers_it_keeps_polling(start, tmp_path, lookupd):
    address, http_address = lookupd.tcp_address, lookupd.http_address
    lookupd.stop()
    process = start(
        f"--lookupd-http-address={http_address}",
        "--topic-pattern=.",
        "--topic-refresh=300ms",
        "--consumer-opt=lookupd_poll_interval,300ms",
    )
    assert process.stderr is not None
    while "could not retrieve topic list" not in process.stderr.readline():
        pass
    lookupd.start()
    (tmp_path / "nsqd").mkdir()
    options = (f"--lookupd-tcp-address={address}", "--broadcast-address=127.0.0.1")
    with NsqdProcess(installed_nsqd(), tmp_path / "nsqd", options=options) as nsqd:
        publish(nsqd, "t", b"1")
        wait_until(lambda: has_nothing_left(nsqd), within=40)
        end(process)
    assert lines(tmp_path / "output") == {"t": [b"1"]}


# --- Signals and the work directory -----------------------------------------------------------------------------------


def test_hangups_with_a_work_directory_and_no_empty_files_lose_nothing(start, tmp_path, nsqd):
    process = start(
        "--topic=t",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        f"--work-dir={tmp_path / 'work'}",
        "--skip-empty-files",
        "--rotate-interval=10s",
    )
    for number in range(3):
        publish(nsqd, "t", b"%d" % number)
        wait_until(lambda: has_nothing_left(nsqd))
        for _ in range(2):
            os.kill(process.pid, signal.SIGHUP)
        # Every one of them is in place before the next message.
        wait_until(lambda number=number: len(lines(tmp_path / "output")) == number + 1)  # type: ignore[misc]
    for _ in range(100):  # a signal on the heels of others is heard too
        os.kill(process.pid, signal.SIGHUP)
    end(process)
    assert lines(tmp_path / "output") == {f"t-{number:06d}": [b"%d" % number] for number in range(3)}
    assert lines(tmp_path / "work") == {}


def test_files_of_a_killed_process_in_the_work_directory_are_put_in_place(start, tmp_path, nsqd):
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", f"--work-dir={tmp_path / 'work'}")
    process = start(*flags)
    publish(nsqd, "t", b"1")
    wait_until(lambda: has_nothing_left(nsqd))
    process.kill()
    process.wait()
    assert lines(tmp_path / "output") == {}
    process = start(*flags, "--skip-empty-files")
    wait_until(lambda: lines(tmp_path / "output") == {"t-000000": [b"1"]})
    end(process)
    assert lines(tmp_path / "work") == {}


def test_a_signal_ends_it_while_nsqd_is_down(start):
    process = start("--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--log-prefix=here ")
    assert process.stderr is not None
    while "re-connecting" not in process.stderr.readline():
        pass
    end(process)


def test_a_disk_that_fails_ends_it_with_an_error_and_without_the_message(start, tmp_path, nsqd):
    publish(nsqd, "t", b"1")
    (tmp_path / "output").write_bytes(b"a file where a folder should be")
    process = start("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    _, log = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "FATAL: [t/nsq_to_file] " in log
    wait_until(lambda: nsqd.channel_stats("t", "nsq_to_file")["depth"] == 1)


def test_a_message_is_written_however_often_it_was_delivered(start, tmp_path, nsqd):
    publish(nsqd, "t", b"1")
    attempts: list[int] = []

    def refuse(message) -> None:
        attempts.append(message.attempts)
        message.requeue(delay=0, backoff=False)

    with Consumer("t", "nsq_to_file", refuse, nsqd_tcp_addresses=nsqd.tcp_address, max_tries=0):
        wait_until(lambda: len(attempts) > 3)
    process = start("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--consumer-opt=max_attempts,1")
    wait_until(lambda: has_nothing_left(nsqd))
    end(process)
    assert lines(tmp_path / "output") == {"t": [b"1"]}


# --- What is refused --------------------------------------------------------------------------------------------------

NSQD = "--nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--topic=t", NSQD, "--topic=a b"], "'a b' is not a valid topic name"),
        (["--topic=t", NSQD, "--channel=a b"], "'a b' is not a valid channel name"),
        (["--topic=t", NSQD, "--topic-pattern=("], "--topic-pattern: missing )"),
        (["--topic=t", NSQD, "--consumer-opt=no_such_option,1"], "invalid option no_such_option"),
        (["--topic=t", NSQD, "--sync-interval=0"], "--sync-interval should be positive"),
        (["--topic=t", NSQD, "--topic-refresh=-1s"], "--topic-refresh should be positive"),
        (["--topic=t", NSQD, "--max-in-flight=0"], "max_in_flight must be 1 or more"),
        (["--topic=t", NSQD, "--gzip", "--filename-format=<TOPIC>"], "missing <REV> in --filename-format"),
        (["--topic=..", NSQD, "--filename-format=<TOPIC>/x"], "leads out of the output directory"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(start, flags, complaint):
    process = start(*flags)
    output, log = process.communicate(timeout=40)
    assert (process.returncode, output) == (1, "")
    assert complaint in log
