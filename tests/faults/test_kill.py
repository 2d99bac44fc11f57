"""F1: nsqd is killed repeatedly at random moments, and no acknowledged message is lost."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.conftest import LONG_ROUNDS, StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.traffic import Traffic


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
    forget_checkpoints(tmp_path)
    traffic.drain(start("--durability=os"))
    assert any("finished before the last checkpoint" in problem for problem in traffic.check())


def forget_checkpoints(data_path: Path) -> None:
    for folder in (data_path / "nsq_compat").glob("*.topic"):
        (folder / "checkpoint").unlink()
