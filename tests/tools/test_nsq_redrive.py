"""nsq_redrive with a real nsqd: dead letters go back where they came from."""

import json
import signal
import time
from contextlib import contextmanager

import pytest

from nsq_compat.client import LogReader, Producer
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd
from tests.v2_client import Client


@pytest.fixture
def of(topic):
    return f"--topic={topic}", "--channel=c"


@pytest.fixture
def redrive(run, nsqd, of):
    """Run it to its end."""
    return lambda *flags, at=nsqd: run("nsq_redrive", *of, f"--nsqd-http-address={at.http_address}", *flags)


@pytest.fixture
def dead(nsqd, topic):
    """The dead-letter topic of channel c, with five messages in it."""
    name = f"{topic}.c.dead"
    nsqd.create_channel(name, "redrive")
    nsqd.publish(name, *[b"%d" % number for number in range(5)])
    return name


def test_all_waiting_messages_are_moved(nsqd, topic, dead, redrive):
    done = redrive()
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"{nsqd_name(nsqd)}: 5 messages of {dead} went to {topic}\n"
    assert nsqd.waiting(topic) == 5
    assert nsqd.unfinished(dead, "redrive") == 0


@contextmanager
def policy(nsqd, **values):
    nsqd.asks("PUT", "/config/policies", json.dumps([values]).encode())
    try:
        yield
    finally:
        nsqd.asks("PUT", "/config/policies", b"[]")


def nsqd_name(nsqd):
    info = nsqd.asks("GET", "/info").json()
    return f"{info['broadcast_address']}:{info['http_port']}"


def test_messages_return_from_the_topic_that_nsqd_made(nsqd, topic, redrive):
    with policy(nsqd, topic=topic, max_attempts=1):
        nsqd.publish(topic, b"bad")
        consume_and_refuse(nsqd, topic)
        wait_until(lambda: nsqd.topic_stats(f"{topic}.c.dead") is not None)
        wait_until(lambda: nsqd.waiting(f"{topic}.c.dead", "redrive") == 1)
    assert redrive().returncode == 0
    assert nsqd.waiting(topic) == 1


def consume_and_refuse(nsqd, topic):
    with Client(nsqd.tcp_address) as consumer:
        (message,) = consumer.subscribes(topic.encode(), ready=1).takes(1)
        consumer.requeues(message)


def test_a_dry_run_moves_nothing(nsqd, topic, dead, redrive):
    line = f"{nsqd_name(nsqd)}: 5 messages of {dead} would go to {topic}\n"
    assert redrive("--dry-run").stdout.decode() == line
    assert redrive("--dry-run", "--count=2").stdout.split()[1] == b"2"
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
    text = f"{topic} has other channels, which would get the messages too (--all-channels): billing"
    assert text.encode() in refused.stderr
    assert nsqd.waiting(dead, "redrive") == 5
    assert redrive("--all-channels").returncode == 0
    assert nsqd.waiting(topic, "billing") == nsqd.waiting(topic) == 5


def test_messages_that_nsqd_refuses_stay_with_an_error(nsqd, topic, dead, redrive):
    nsqd.publish(topic, b"full")
    with policy(nsqd, topic=topic, max_depth=1):
        refused = redrive()
    assert refused.returncode == 1
    assert b"after 0 messages: " in refused.stderr
    assert b"is full (max_depth)" in refused.stderr
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
    with Nsqd(installed_nsqd(), tmp_path, options=["--max-body-size=3000000"]) as small:
        small.create_channel(topic, "c")
        small.publish(f"{topic}.c.dead", *[b"x" * 1_000_000] * 5)
        done = redrive(at=small)
        assert done.returncode == 0, done.stderr
        assert small.stat(topic, "depth") == 5


def test_a_topic_without_dead_letters_is_refused(redrive, topic):
    refused = redrive()
    assert (refused.returncode, f"no nsqd has the topic {topic}.c.dead".encode() in refused.stderr) == (1, True)


def test_headers_are_redriven_and_an_id_gets_another_name(nsqd, topic, redrive):
    nsqd.create_channel(f"{topic}.c.dead", "redrive")
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(f"{topic}.c.dead", b"with", headers={"a": "b", "nsq-id": "1"})
    assert redrive().returncode == 0
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address) as reader:
        assert [(message.body, dict(message.headers)) for message in reader] == [
            (b"with", {"a": "b", "nsq-origin-id": "1"})
        ]
