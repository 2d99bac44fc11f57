"""nsq_redrive with a real nsqd: dead letters go back where they came from."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd
from tests.v2_client import Client


@pytest.fixture
def of(topic: str) -> tuple[str, str]:
    return f"--topic={topic}", "--channel=c"


@pytest.fixture
def redrive(nsqd: Nsqd, of: tuple[str, str]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run it to its end."""

    def run(*flags: str, at: NsqdProcess = nsqd) -> "subprocess.CompletedProcess[str]":
        program = str(Path(sys.executable).with_name("nsq_redrive"))
        command = [program, *of, f"--nsqd-http-address={at.http_address}", *flags]
        return subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)

    return run


@pytest.fixture
def dead(nsqd: Nsqd, topic: str) -> str:
    """The dead-letter topic of channel c, with five messages in it."""
    name = f"{topic}.c.dead"
    nsqd.create_channel(name, "redrive")
    nsqd.publish(name, *[b"%d" % number for number in range(5)])
    return name


def test_all_waiting_messages_are_moved(nsqd, topic, dead, redrive):
    done = redrive()
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{nsqd_name(nsqd)}: 5 messages of {dead} went to {topic}\n"
    assert nsqd.waiting(topic) == 5
    assert nsqd.unfinished(dead, "redrive") == 0


def nsqd_name(nsqd: NsqdProcess) -> str:
    info = nsqd.asks("GET", "/info").json()
    return f"{info['broadcast_address']}:{info['http_port']}"


def test_messages_return_from_the_topic_that_nsqd_made(nsqd, topic, redrive):
    nsqd.asks("PUT", "/config/policies", json.dumps([{"topic": topic, "max_attempts": 1}]).encode())
    try:
        nsqd.publish(topic, b"bad")
        consume_and_refuse(nsqd, topic)
        wait_until(lambda: nsqd.topic_stats(f"{topic}.c.dead") is not None)
        wait_until(lambda: nsqd.waiting(f"{topic}.c.dead", "redrive") == 1)
    finally:
        nsqd.asks("PUT", "/config/policies", b"[]")
    assert redrive().returncode == 0
    assert nsqd.waiting(topic) == 1


def consume_and_refuse(nsqd: NsqdProcess, topic: str) -> None:
    with Client(nsqd.tcp_address) as consumer:
        (message,) = consumer.subscribes(topic.encode(), ready=1).takes(1)
        consumer.requeues(message)


def test_a_dry_run_moves_nothing(nsqd, topic, dead, redrive):
    assert redrive("--dry-run").stdout == f"{nsqd_name(nsqd)}: 5 messages of {dead} would go to {topic}\n"
    assert redrive("--dry-run", "--count=2").stdout.split()[1] == "2"
    assert nsqd.waiting(dead, "redrive") == 5
    assert nsqd.waiting(topic) == 0


def test_count_and_destination_can_be_chosen(nsqd, topic, dead, redrive):
    assert redrive("--count=2", f"--destination-topic={topic}-2").returncode == 0
    assert nsqd.waiting(dead, "redrive") == 3
    stats = nsqd.topic_stats(f"{topic}-2")
    assert stats is not None
    assert stats["depth"] == 2


def test_a_rate_is_kept(nsqd, topic, dead, redrive):
    began = time.monotonic()
    assert redrive("--rate=2").returncode == 0
    assert time.monotonic() - began >= 2.0
    assert nsqd.waiting(topic) == 5


def test_other_channels_are_named_and_need_a_flag(nsqd, topic, dead, redrive):
    nsqd.create_channel(topic, "billing")
    refused = redrive()
    assert refused.returncode == 1
    assert f"{topic} has other channels, which would get the messages too (--all-channels): billing" in refused.stderr
    assert nsqd.waiting(dead, "redrive") == 5
    assert redrive("--all-channels").returncode == 0
    assert nsqd.waiting(topic, "billing") == nsqd.waiting(topic) == 5


def test_messages_that_nsqd_refuses_stay_with_an_error(nsqd, topic, dead, redrive):
    nsqd.publish(topic, b"full")
    nsqd.asks("PUT", "/config/policies", json.dumps([{"topic": topic, "max_depth": 1}]).encode())
    try:
        refused = redrive()
    finally:
        nsqd.asks("PUT", "/config/policies", b"[]")
    assert refused.returncode == 1
    assert "after 0 messages: " in refused.stderr
    assert "is full (max_depth)" in refused.stderr
    wait_until(lambda: nsqd.waiting(dead, "redrive") == 5)
    assert nsqd.waiting(topic) == 1


def test_a_kill_loses_no_message(nsqd, topic, dead, of, start):
    process = start("nsq_redrive", *of, f"--nsqd-http-address={nsqd.http_address}", "--rate=5")
    wait_until(lambda: nsqd.waiting(topic) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    moved = nsqd.waiting(topic)
    assert 1 <= moved <= 5
    assert 5 - moved <= nsqd.unfinished(dead, "redrive") <= 6 - moved


def test_sigterm_ends_it_in_order(nsqd, topic, dead, of, start):
    process = start("nsq_redrive", *of, f"--nsqd-http-address={nsqd.http_address}", "--rate=1")
    wait_until(lambda: nsqd.waiting(topic) >= 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert nsqd.waiting(topic) + nsqd.unfinished(dead, "redrive") == 5


def test_large_messages_are_split_over_several_publishes(redrive, topic, tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path, options=["--max-body-size=3000000"]) as small:
        small.create_channel(topic, "c")
        for _ in range(5):
            small.asks("POST", f"/pub?topic={topic}.c.dead", b"x" * 1_000_000)
        done = redrive(at=small)
        assert done.returncode == 0, done.stderr
        assert small.channel_stats(topic, "c")["depth"] == 5


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--topic="], "--topic and --channel are required"),
        (["--channel=a b"], "--channel is invalid"),
        (["--dead-letter-topic={topic}"], "the dead-letter topic is the destination"),
        (["--count=-1"], "--count must not be negative"),
        (["--rate=-1"], "--rate must not be negative"),
        (["--lookupd-http-address=127.0.0.1:1"], "not both"),
        ([], "no nsqd has the topic"),
        (["--consumer-opt=nonsense,1"], "nonsense"),
    ],
)
def test_wrong_options_are_refused(redrive, flags, text):
    refused = redrive(*flags)
    assert refused.returncode == 1
    assert text in refused.stderr
