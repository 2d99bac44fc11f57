"""nsq_to_file, ours or Go's (``--utilities FOLDER``), with the nsqd to test."""

import gzip
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess

Utility = Callable[[str], str]
Start = Callable[..., "subprocess.Popen[bytes]"]
WITHIN = 40


@pytest.fixture
def start(utility: Utility, nsqd: NsqdProcess, topic: str, tmp_path: Path) -> Iterator[Start]:
    """Start nsq_to_file for the test's topic, with ten syncs a second; it is stopped at the end of the test."""
    nsqd.create_channel(topic, "nsq_to_file")
    with ExitStack() as processes:

        def start_it(*flags: str) -> "subprocess.Popen[bytes]":
            command = [
                utility("nsq_to_file"),
                f"--topic={topic}",
                f"--nsqd-tcp-address={nsqd.tcp_address}",
                f"--output-dir={tmp_path / 'output'}",
                "--sync-interval=100ms",
                "--filename-format=<TOPIC><REV>.<DATETIME>.log",
                "--datetime-format=x",
                *flags,
            ]
            process = subprocess.Popen(command, stderr=subprocess.PIPE)
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start_it


@pytest.fixture
def publish(nsqd: NsqdProcess, topic: str) -> Callable[..., None]:
    """Publish messages and wait until they are finished."""

    def publish_bodies(*bodies: bytes) -> None:
        url = f"http://{nsqd.http_address}/mpub?topic={topic}"
        urlopen(Request(url, data=b"\n".join(bodies)), timeout=WITHIN).close()
        eventually(lambda: is_empty(nsqd, topic))

    return publish_bodies


def is_empty(nsqd: NsqdProcess, topic: str) -> bool:
    stats = nsqd.channel_stats(topic, "nsq_to_file")
    return (stats["depth"], stats["in_flight_count"]) == (0, 0)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    _, log = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, log


def lines(folder: Path, topic: str) -> dict[str, list[bytes]]:
    """The lines of non-empty files, by the part of the file name after the topic."""
    found = {}
    for path in folder.glob("*") if folder.exists() else ():
        data = path.read_bytes()
        if read := sorted((gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()):
            found[path.name.removeprefix(topic)] = read
    return found


def test_every_message_is_a_line(start: Start, publish: Callable[..., None], tmp_path: Path, topic: str) -> None:
    process = start()
    bodies = sorted(b"%04d \xff\x00" % number for number in range(1000))
    publish(*bodies)
    assert lines(tmp_path / "output", topic) == {".x.log": bodies}
    end(process)


def test_a_restart_continues_the_file(start: Start, publish: Callable[..., None], tmp_path: Path, topic: str) -> None:
    for body in (b"1", b"2"):
        process = start()
        publish(body)
        end(process)
    assert lines(tmp_path / "output", topic) == {".x.log": [b"1", b"2"]}


def test_compressed_files_are_readable_and_a_restart_begins_a_new_one(
    start: Start, publish: Callable[..., None], tmp_path: Path, topic: str
) -> None:
    for body in (b"1", b"2"):
        process = start("--gzip", "--skip-empty-files")
        publish(body, body)
        end(process)
    assert lines(tmp_path / "output", topic) == {"-000000.x.log.gz": [b"1", b"1"], "-000001.x.log.gz": [b"2", b"2"]}


def test_a_file_is_rotated_at_its_maximum_size(
    start: Start, publish: Callable[..., None], tmp_path: Path, topic: str
) -> None:
    process = start("--rotate-size=5")
    publish(*[b"12"] * 5)
    end(process)
    assert lines(tmp_path / "output", topic) == {
        "-000000.x.log": [b"12", b"12"],
        "-000001.x.log": [b"12", b"12"],
        "-000002.x.log": [b"12"],
    }


def test_sighup_reopens_the_file(start: Start, publish: Callable[..., None], tmp_path: Path, topic: str) -> None:
    process = start()
    publish(b"1")
    (tmp_path / "output" / f"{topic}.x.log").rename(tmp_path / "output" / "moved")
    os.kill(process.pid, signal.SIGHUP)
    eventually(lambda: (tmp_path / "output" / f"{topic}.x.log").exists())
    publish(b"2")
    assert lines(tmp_path / "output", topic) == {"moved": [b"1"], ".x.log": [b"2"]}
    end(process)


def test_with_a_work_directory_only_finished_files_are_in_the_output_directory(
    start: Start, publish: Callable[..., None], tmp_path: Path, topic: str
) -> None:
    process = start(f"--work-dir={tmp_path / 'work'}")
    publish(b"1")
    assert lines(tmp_path / "output", topic) == {}
    end(process)
    assert lines(tmp_path / "output", topic) == {"-000000.x.log": [b"1"]}
    assert lines(tmp_path / "work", topic) == {}


NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--topic=t", NSQD, "more"], b"unknown arguments: [more]"),
        (["--version", "--log-level=loud"], b"--log-level is invalid"),
        (["--topic=t", NSQD, "--channel="], b"--channel is required"),
        (["--http-client-connect-timeout=0"], b"--http-client-connect-timeout should be positive"),
        (["--http-client-request-timeout=0"], b"--http-client-request-timeout should be positive"),
        (["--topic=t"], b"--nsqd-tcp-address or --lookupd-http-address required"),
        (["--topic=t", NSQD, LOOKUPD], b"use --nsqd-tcp-address or --lookupd-http-address not both"),
        ([NSQD, "--gzip-level=0"], b"invalid --gzip-level value (0), should be 1-9"),
        ([NSQD], b"--topic or --topic-pattern required"),
        ([NSQD, "--topic-pattern=t"], b"--lookupd-http-address must be specified when no --topic specified"),
    ],
)
def test_missing_flags_are_reported(utility: Utility, flags: list[str], complaint: bytes) -> None:
    done = subprocess.run([utility("nsq_to_file"), *flags], capture_output=True, timeout=WITHIN, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_it_prints_its_version(utility: Utility) -> None:
    done = subprocess.run([utility("nsq_to_file"), "--version"], capture_output=True, timeout=WITHIN, check=False)
    assert done.stdout.startswith(b"nsq_to_file v1.3.0")
