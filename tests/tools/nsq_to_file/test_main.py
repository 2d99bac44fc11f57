"""nsq_to_file as a process: topics that are found, signals, disks that fail, and what Go's loses."""

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from nsq_compat.client import Consumer, Producer
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd


@pytest.fixture
def to_file(start, tmp_path):
    """Start it with the output directory ``output`` and names that hold nothing but the topic."""
    flags = (f"--output-dir={tmp_path / 'output'}", "--filename-format=<TOPIC><REV>", "--sync-interval=100ms")
    return lambda *more: start("nsq_to_file", *flags, *more)


@pytest.fixture
def of(nsqd, topic):
    return f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}"


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


def has_nothing_left(nsqd: Nsqd, topic: str) -> bool:
    """Of the channel that it has created."""
    try:
        return nsqd.unfinished(topic, "nsq_to_file") == 0
    except LookupError:
        return False


# --- Topics that are found --------------------------------------------------------------------------------------------


def test_topics_are_found_at_once_and_later_and_only_those_that_match(to_file, tmp_path, lookupd, announced_nsqd):
    nsqd = announced_nsqd
    nsqd.publish("orders.a", b"1")
    nsqd.publish("other", b"2")
    wait_until(lambda: len(lookupd.get("/topics")["topics"]) == 2)
    process = to_file(
        # An nsqlookupd that is down does not matter.
        "--lookupd-http-address=127.0.0.1:1",
        f"--lookupd-http-address={lookupd.http_address}",
        "--topic-pattern=^orders",
        "--topic-refresh=500ms",
        "--consumer-opt=lookupd_poll_interval,500ms",
    )
    wait_until(lambda: has_nothing_left(nsqd, "orders.a"))
    nsqd.publish("orders.b", b"3")
    wait_until(lambda: has_nothing_left(nsqd, "orders.b"))
    log = end(process)
    assert lines(tmp_path / "output") == {"orders.a": [b"1"], "orders.b": [b"3"]}
    assert log.count("skipping topic other (doesn't match pattern ^orders)") == 1


def test_of_topics_that_are_found_a_limited_number_is_written(to_file, tmp_path, lookupd, announced_nsqd):
    nsqd = announced_nsqd
    for topic in ("orders.a", "orders.b", "orders.c"):
        nsqd.publish(topic, b"1")
    wait_until(lambda: len(lookupd.get("/topics")["topics"]) == 3)
    process = to_file(
        f"--lookupd-http-address={lookupd.http_address}", "--topic-pattern=.", "--topic-refresh=100ms", "--max-topics=2"
    )
    wait_until(lambda: has_nothing_left(nsqd, "orders.a") and has_nothing_left(nsqd, "orders.b"))
    log = end(process)
    assert lines(tmp_path / "output").keys() == {"orders.a", "orders.b"}
    assert "skipping topic orders.c (--max-topics=2 are written)" in log


def test_channels_of_topics_that_are_found_begin_where_they_should(to_file, tmp_path, lookupd, announced_nsqd):
    nsqd = announced_nsqd
    for topic in ("orders.a", "orders.b"):
        nsqd.create_channel(topic, "c")
        nsqd.publish(topic, b"1", b"2")
    wait_until(lambda: len(lookupd.get("/topics")["topics"]) == 2)
    address = f"--lookupd-http-address={lookupd.http_address}"
    process = to_file(address, "--topic-pattern=a$", "--from=oldest")
    named = to_file(address, "--topic=orders.b", "--from=1h")
    wait_until(lambda: has_nothing_left(nsqd, "orders.a") and has_nothing_left(nsqd, "orders.b"))
    assert "channel nsq_to_file of orders.a begins at 0: 2 messages will come" in end(process)
    end(named)
    assert lines(tmp_path / "output") == {"orders.a": [b"1", b"2"], "orders.b": [b"1", b"2"]}


def test_while_no_nsqlookupd_answers_it_keeps_polling(to_file, tmp_path, lookupd):
    address = lookupd.tcp_address
    lookupd.stop()
    process = to_file(
        f"--lookupd-http-address={lookupd.http_address}",
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
    with Nsqd(installed_nsqd(), tmp_path / "nsqd", options=options) as nsqd:
        nsqd.publish("t", b"1")
        wait_until(lambda: has_nothing_left(nsqd, "t"), within=40)
        end(process)
    assert lines(tmp_path / "output") == {"t": [b"1"]}


def test_lines_of_json_have_headers_and_what_identifies_a_message(to_file, of, tmp_path, nsqd, topic, is_idle):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, "ä\n".encode(), headers={"Customer": "42"})
        producer.publish(topic, b"\xff")
    process = to_file(*of, "--format=json")
    wait_until(is_idle)
    end(process)
    (written,) = lines(tmp_path / "output").values()
    first, second = sorted(map(json.loads, written), key=lambda line: line["timestamp"])
    assert first == {
        "id": first["id"],
        "nsqd": nsqd.tcp_address,
        "timestamp": first["timestamp"],
        "attempts": 1,
        "headers": {"customer": "42"},
        "body": "ä\n",
    }
    assert (second["headers"], base64.b64decode(second["body_base64"]), "body" in second) == ({}, b"\xff", False)
    assert len({first["id"], second["id"]}) == 2


# --- Signals and the work directory -----------------------------------------------------------------------------------


def test_hangups_with_a_work_directory_and_no_empty_files_lose_nothing(to_file, of, tmp_path, topic, is_idle, publish):
    process = to_file(*of, f"--work-dir={tmp_path / 'work'}", "--skip-empty-files", "--rotate-interval=10s")
    for number in range(3):
        publish(b"%d" % number)
        wait_until(is_idle)
        for _ in range(2):
            os.kill(process.pid, signal.SIGHUP)
        # Every one of them is in place before the next message.
        wait_until(lambda number=number: len(lines(tmp_path / "output")) == number + 1)  # type: ignore[misc]
    for _ in range(100):  # a signal on the heels of others is heard too
        os.kill(process.pid, signal.SIGHUP)
    end(process)
    assert lines(tmp_path / "output") == {f"{topic}-{number:06d}": [b"%d" % number] for number in range(3)}
    assert lines(tmp_path / "work") == {}


def test_files_of_a_killed_process_in_the_work_directory_are_put_in_place(
    to_file, of, tmp_path, topic, is_idle, publish
):
    flags = (*of, f"--work-dir={tmp_path / 'work'}")
    process = to_file(*flags)
    publish(b"1")
    wait_until(is_idle)
    process.kill()
    process.wait()
    assert lines(tmp_path / "output") == {}
    process = to_file(*flags, "--skip-empty-files")
    wait_until(lambda: lines(tmp_path / "output") == {f"{topic}-000000": [b"1"]})
    end(process)
    assert lines(tmp_path / "work") == {}


def test_a_signal_ends_it_while_nsqd_is_down(to_file):
    process = to_file("--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--retry", "--log-prefix=here ")
    assert process.stderr is not None
    while "re-connecting" not in process.stderr.readline():
        pass
    end(process)


def test_a_disk_that_fails_ends_it_with_an_error_and_all_messages_are_requeued(
    to_file, of, tmp_path, nsqd, topic, publish
):
    publish(b"1", b"2", b"3")
    (tmp_path / "output").mkdir()
    (tmp_path / "output/file").write_bytes(b"a file where a folder should be")
    process = to_file(*of, "--filename-format=file/<TOPIC>")
    _, log = process.communicate(timeout=40)
    assert process.returncode == 1
    assert f"FATAL: [{topic}/c] {tmp_path}/output/file/{topic}: not a directory" in log
    wait_until(lambda: nsqd.waiting(topic) == 3)


def test_a_message_is_written_however_often_it_was_delivered(to_file, of, tmp_path, nsqd, topic, is_idle, publish):
    publish(b"1")
    attempts: list[int] = []

    def refuse(message) -> None:
        attempts.append(message.attempts)
        message.requeue(delay=0, backoff=False)

    with Consumer(topic, "c", refuse, nsqd_tcp_addresses=nsqd.tcp_address, max_tries=0):
        wait_until(lambda: len(attempts) > 3)
    process = to_file(*of, "--consumer-opt=max_attempts,1")
    wait_until(is_idle)
    end(process)
    assert lines(tmp_path / "output") == {topic: [b"1"]}
