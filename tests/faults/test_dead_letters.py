"""nsqd is killed while messages move to their dead-letter topic: each arrives, with at most one repetition per kill."""

import contextlib
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.faults.client import Client, Gone
from tests.faults.conftest import LONG_ROUNDS, StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.waiting import wait_until

DEAD = "orders.archive.dead"


def refuse_everything(daemon: Daemon, until: float) -> None:
    """A consumer that requeues every message."""
    with contextlib.suppress(Gone), Client(daemon.address()) as consumer:
        consumer.subscribe("orders", "archive", ready=50)
        while (left := until - time.monotonic()) > 0:
            for message in consumer.messages(left):
                consumer.requeue(message.id, 0)


def one_life(daemon: Daemon, number: int, random: Random) -> list[bytes]:
    """Run nsqd until a kill; returns the acknowledged messages."""
    bodies = [b"%d %d" % (number, each) for each in range(random.randrange(50, 400))]
    with Client(daemon.address()) as producer:
        producer.publish_together("orders", bodies)
    refuse_everything(daemon, time.monotonic() + random.uniform(0.0, 0.4))
    return bodies


def found(daemon: Daemon) -> Counter[bytes]:
    """All messages of the dead-letter topic."""
    (channel,) = daemon.channels(DEAD)
    bodies: Counter[bytes] = Counter()
    with Client(daemon.address()) as reader:
        reader.subscribe(DEAD, "redrive", ready=2500)
        while bodies.total() < channel["depth"]:
            messages = reader.take(1)
            assert messages, "some are missing"
            bodies.update(message.body for message in messages)
            reader.finish(message.id for message in messages)
    return bodies


def check_dead_letters_survive_kills(start: StartDaemon, config: Path, random: Random, rounds: int) -> None:
    config.write_text("[[policies]]\nmax_attempts = 2\n")
    acknowledged: list[bytes] = []
    for number in range(rounds):
        options = (f"--durability={random.choice(('os', 'fsync'))}", "--sync-timeout=50ms", "--mem-queue-size=100")
        daemon = start(f"--config={config}", *options)
        acknowledged += one_life(daemon, number, random)
        daemon.kill()
    daemon = start(f"--config={config}", "--msg-timeout=1s")
    wait_until(lambda: any(daemon.channels("orders")))
    while daemon.unfinished("orders")["archive"]:
        refuse_everything(daemon, time.monotonic() + 0.5)
    there = found(daemon)
    assert set(there) == set(acknowledged)
    assert max(there.values()) <= 1 + rounds
    print(f"acknowledged {len(acknowledged)}, in the dead-letter topic {sum(there.values())}")


def test_messages_on_their_way_to_the_dead_letter_topic_survive_kill_9(start, seed, tmp_path):
    check_dead_letters_survive_kills(start, tmp_path / "nsqd.cfg", Random(seed), 5)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_messages_on_their_way_to_the_dead_letter_topic_survive_many_kills(start, seed, tmp_path):
    check_dead_letters_survive_kills(start, tmp_path / "nsqd.cfg", Random(seed), LONG_ROUNDS // 4)
