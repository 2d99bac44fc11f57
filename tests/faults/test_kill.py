"""F1: nsqd is killed repeatedly, and no acknowledged message is lost: at random moments, long before its checkpoint
interval has passed, and while messages move to a dead-letter topic.
"""

import base64
import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.conftest import LONG_ROUNDS, StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.faults.traffic import Traffic
from tests.v2_client import GONE


def settings(random: Random, *levels: str) -> list[str]:
    """Options with which the logs spill, roll and release segments all the time."""
    return [
        f"--durability={random.choice(levels)}",
        f"--mem-queue-size={random.choice((0, 1, 20, 500, 10_000))}",
        f"--max-bytes-per-file={random.choice((2_000, 20_000, 300_000, 10_000_000))}",
        f"--sync-timeout={random.choice(('50ms', '100ms', '300ms'))}",
    ]


def many_lives(start: StartDaemon, traffic: Traffic, rounds: int, *levels: str) -> None:
    """Kill nsqd `rounds` times, then drain it twice, because a clean stop must keep finished messages finished."""
    for number in range(rounds):
        daemon = start(*settings(traffic.random, *levels))
        if number == 0:
            for name in "abc":
                traffic.add_channel(daemon, traffic.orders, name)
        elif number == rounds // 2:
            traffic.add_channel(daemon, traffic.orders, "later")
        traffic.run(daemon, traffic.random.uniform(0.2, 1.2), Daemon.kill)
    for _ in range(2):
        traffic.drain(start(*settings(traffic.random, *levels)))


def report(traffic: Traffic) -> None:
    deliveries = sum(channel.deliveries for ledger in traffic.ledgers for channel in ledger.channels.values())
    acknowledged = sum(len(ledger.acknowledged) for ledger in traffic.ledgers)
    oldest = max(traffic.checkpoint_ages, default=0.0)
    print(
        f"acknowledged {acknowledged}, delivered {deliveries}, finished for good before a kill {traffic.settled}, "
        f"oldest checkpoint at a kill {oldest:.2f} s"
    )


def check_no_acknowledged_message_is_lost(start: StartDaemon, traffic: Traffic, rounds: int) -> None:
    many_lives(start, traffic, rounds, "os", "fsync")
    report(traffic)
    assert traffic.check() == []
    assert traffic.refusals == []
    # Otherwise the test would prove nothing.
    assert all(ledger.acknowledged for ledger in traffic.ledgers)


def test_acknowledged_messages_survive_kill_9(start, seed, tmp_path):
    check_no_acknowledged_message_is_lost(start, Traffic(seed, tmp_path), 6)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_acknowledged_messages_survive_many_kills(start, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    check_no_acknowledged_message_is_lost(start, traffic, LONG_ROUNDS)
    assert traffic.settled, "no checkpoint was old enough to hold nsqd to"


def test_the_checker_detects_losses_at_a_level_without_the_guarantee(start, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    daemon = start("--durability=memory")
    traffic.add_channel(daemon, traffic.orders, "a")
    traffic.run(daemon, 1, Daemon.kill)
    traffic.drain(start("--durability=memory"))
    assert any("acknowledged but lost" in problem for problem in traffic.check())


def test_the_checker_detects_redeliveries_without_checkpoints(start, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    daemon = start("--durability=os", "--sync-timeout=50ms")
    traffic.add_channel(daemon, traffic.orders, "a")
    traffic.run(daemon, 1, Daemon.kill)
    while not traffic.settled:  # a slow machine may have written no checkpoint that is old enough
        traffic.run(start("--durability=os", "--sync-timeout=50ms"), 1, Daemon.kill)
    for checkpoint in tmp_path.glob("nsq_compat/*.topic/checkpoint"):
        checkpoint.unlink()
    traffic.drain(start("--durability=os"))
    assert any("finished before the last checkpoint" in problem for problem in traffic.check())


# --- Short lives ------------------------------------------------------------------------------------------------------

LIVES = 4
CHECKPOINTED, NOT_CHECKPOINTED = 200, 100
"""Messages finished in each life before its last checkpoint, and after it."""


def wait_for_checkpoint(daemon: Daemon, unfinished: int) -> None:
    """Wait for a checkpoint with at most `unfinished` unfinished messages of the channel."""
    # A slow machine may already be in an interval of a minute.
    wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") <= unfinished, within=150.0)


def test_a_crash_loop_redelivers_only_messages_finished_after_the_last_checkpoint(start: StartDaemon):
    total = LIVES * (CHECKPOINTED + NOT_CHECKPOINTED)
    delivered: list[bytes] = []
    for life in range(LIVES):
        daemon = start("--sync-timeout=60s")
        if not life:
            daemon.create_channel("t", "c")
            with daemon.client() as producer:
                producer.publishes_together([b"%d" % number for number in range(total)])
        with daemon.client() as consumer:
            consumer.subscribes(ready=1)
            for count in (CHECKPOINTED, NOT_CHECKPOINTED):
                for _ in range(count):
                    [message] = consumer.takes(1, finishing=True)
                    delivered.append(message.body)
                if count == CHECKPOINTED:
                    wait_for_checkpoint(daemon, total - len(set(delivered)) + 1)
        daemon.kill()
    duplicates = len(delivered) - len(set(delivered))
    print(f"{LIVES} lives, {len(delivered)} delivered, {duplicates} of them again")
    assert duplicates <= (LIVES - 1) * (NOT_CHECKPOINTED + 2)


def test_a_requeue_delay_survives_a_crash_and_a_lost_checkpoint(start: StartDaemon, tmp_path):
    daemon = start("--sync-timeout=60s")
    daemon.create_channel("t", "c")
    daemon.publishes(b"later", b"finished", b"never taken")
    with daemon.client() as consumer:
        later, finished = consumer.subscribes(ready=2).takes(2)
        consumer.requeues(later, 3_000_000).finishes([finished])
        wait_until(lambda: next(daemon.channels("t"))["deferred_count"] == 1)
        for lost in (False, True):
            daemon.kill()
            if lost:
                os.unlink(tmp_path / "nsq_compat" / "t.topic" / "checkpoint")
            daemon = start("--sync-timeout=60s")
            [channel] = daemon.channels("t")
            assert channel["deferred_count"] == 1
            assert not lost or "there is no checkpoint" in daemon.log
            wait_for_checkpoint(daemon, 3)


# --- Messages taken out by an operator --------------------------------------------------------------------------------


def peek_ids(daemon: Daemon, channel: str = "c", topic: str = "t") -> dict[bytes, str]:
    """The ids of the next messages in each state, by body."""
    answer = json.loads(daemon.http("channel/peek", topic=topic, channel=channel, limit=100)[1])
    messages = [*answer["messages"], *answer["deferred"], *answer["in_flight"]]
    return {base64.b64decode(each["body"]): each["id"] for each in messages}


def act(daemon: Daemon, action: str, *ids: str) -> dict[str, Any]:
    status, answer = daemon.http(f"channel/{action}", "\n".join(ids).encode(), topic="t", channel="c")
    assert status == 200, answer
    return dict(json.loads(answer))


@pytest.mark.parametrize("level", ["memory", "os", "fsync"])
def test_an_operators_finish_is_as_durable_as_a_consumers(start: StartDaemon, level: str):
    """Of a message that waits in memory or in the log, is deferred, or in flight."""
    options = (f"--durability={level}", "--mem-queue-size=2", "--sync-timeout=50ms")
    daemon = start(*options)
    daemon.create_channel("t", "c")
    bodies = [b"%d" % number for number in range(20)]
    daemon.publishes(*bodies)
    daemon.http("pub", b"later", topic="t", defer=3_600_000)
    if level != "memory":  # one that was written earlier may have as few as are left below
        wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") == 21)
    with daemon.client() as consumer:
        [taken] = consumer.subscribes(ready=1).takes(1)
        ids = peek_ids(daemon)
        answer = act(daemon, "finish", ids[taken.body], ids[b"7"], ids[b"19"], ids[b"later"], "0" * 16)
        assert answer == {"finished": 4, "not_found": ["0" * 16]}
        consumer.finishes([taken]).hears(b"E_FIN_FAILED FIN " + taken.id + b" failed ID not in flight")
    if level == "memory":  # its promise is a clean stop
        assert daemon.stop() == 0
    else:
        wait_for_checkpoint(daemon, 17)
        daemon.kill()
    daemon = start(*options)
    assert daemon.unfinished("t") == {"c": 17}
    left = daemon.consumes(17)
    assert sorted(left) == sorted(body for body in bodies if body not in (taken.body, b"7", b"19"))


@pytest.mark.parametrize("level", ["os", "fsync"])
def test_a_message_sent_to_the_dead_letter_topic_is_there_after_a_kill(start: StartDaemon, level: str):
    """It may be in its channel as well, but never in neither."""
    daemon = start(f"--durability={level}", "--sync-timeout=60s")
    daemon.create_channel("t", "c")
    daemon.publishes(b"one", b"two", b"three")
    ids = peek_ids(daemon)
    answer = act(daemon, "dead_letter", ids[b"one"], ids[b"three"])
    daemon.kill()
    assert answer == {"topic": "t.c.dead", "dead_lettered": 2, "pending": [], "not_found": []}
    daemon = start(f"--durability={level}")
    assert set(peek_ids(daemon, "redrive", "t.c.dead")) == {b"one", b"three"}
    assert b"two" in peek_ids(daemon)


@pytest.mark.parametrize("level", ["os", "fsync"])
def test_a_redrive_that_is_killed_loses_nothing(start: StartDaemon, level: str):
    daemon = start(f"--durability={level}", "--sync-timeout=60s")
    daemon.create_channel("t", "c")
    daemon.create_channel("again", "c")
    daemon.publishes(b"one", b"two", b"three")
    status, answer = daemon.http("channel/redrive", b"", topic="t", channel="c", to="again", limit=2)
    daemon.kill()
    assert (status, json.loads(answer)) == (200, {"moved": 2, "depth": 1})
    daemon = start(f"--durability={level}")
    assert peek_ids(daemon, "c", "again").keys() == {b"one", b"two"}
    assert b"three" in peek_ids(daemon)


# --- Dead letters -----------------------------------------------------------------------------------------------------

DEAD = "orders.archive.dead"


def refuse_everything(daemon: Daemon, seconds: float) -> None:
    """A consumer that requeues every message."""
    until = time.monotonic() + seconds
    with contextlib.suppress(*GONE), daemon.client() as consumer:
        consumer.subscribes(b"orders", b"archive", ready=50)
        while (left := until - time.monotonic()) > 0:
            for message in consumer.messages(left):
                consumer.requeues(message)


def check_dead_letters_survive_kills(start: StartDaemon, config: Path, random: Random, rounds: int) -> None:
    """Each arrives, with at most one repetition per kill."""
    config.write_text("[[policies]]\nmax_attempts = 2\n")
    acknowledged: list[bytes] = []
    for number in range(rounds):
        options = (f"--durability={random.choice(('os', 'fsync'))}", "--sync-timeout=50ms", "--mem-queue-size=100")
        daemon = start(f"--config={config}", *options)
        bodies = [b"%d %d" % (number, each) for each in range(random.randrange(50, 400))]
        with daemon.client() as producer:
            producer.publishes_together(bodies, b"orders")
        acknowledged += bodies
        refuse_everything(daemon, random.uniform(0.0, 0.4))
        daemon.kill()
    daemon = start(f"--config={config}", "--msg-timeout=1s")
    wait_until(lambda: any(daemon.channels("orders")))
    while daemon.unfinished("orders")["archive"]:
        refuse_everything(daemon, 0.5)
    (channel,) = daemon.channels(DEAD)
    there = Counter(daemon.consumes(channel["depth"], DEAD.encode(), b"redrive"))
    assert set(there) == set(acknowledged)
    assert max(there.values()) <= 1 + rounds
    print(f"acknowledged {len(acknowledged)}, in the dead-letter topic {sum(there.values())}")


def test_messages_on_their_way_to_the_dead_letter_topic_survive_kill_9(start, seed, tmp_path):
    check_dead_letters_survive_kills(start, tmp_path / "nsqd.cfg", Random(seed), 5)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_messages_on_their_way_to_the_dead_letter_topic_survive_many_kills(start, seed, tmp_path):
    check_dead_letters_survive_kills(start, tmp_path / "nsqd.cfg", Random(seed), LONG_ROUNDS // 4)
