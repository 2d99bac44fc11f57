"""F1: nsqd is killed repeatedly long before its checkpoint interval has passed."""

import os

from tests.faults.client import Client
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.waiting import wait_until

LIVES = 4
CHECKPOINTED, NOT_CHECKPOINTED = 200, 100
"""Messages finished in each life before its last checkpoint, and after it."""


def wait_for_checkpoint(daemon: Daemon, unfinished: int) -> None:
    """Wait for a checkpoint with at most `unfinished` unfinished messages of the channel."""
    wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") <= unfinished)


def test_a_crash_loop_redelivers_only_messages_finished_after_the_last_checkpoint(start: StartDaemon):
    total = LIVES * (CHECKPOINTED + NOT_CHECKPOINTED)
    delivered: list[bytes] = []
    for life in range(LIVES):
        daemon = start("--sync-timeout=60s")
        if not life:
            daemon.create_channel("t", "c")
            with Client(daemon.address()) as producer:
                producer.publish_together("t", [b"%d" % number for number in range(total)])
        with Client(daemon.address()) as consumer:
            consumer.subscribe("t", "c", ready=1)
            for count in (CHECKPOINTED, NOT_CHECKPOINTED):
                for _ in range(count):
                    [message] = consumer.take(1)
                    delivered.append(message.body)
                    consumer.finish([message.id])
                if count == CHECKPOINTED:
                    wait_for_checkpoint(daemon, total - len(set(delivered)) + 1)
        daemon.kill()
    duplicates = len(delivered) - len(set(delivered))
    print(f"{LIVES} lives, {len(delivered)} delivered, {duplicates} of them again")
    assert duplicates <= (LIVES - 1) * (NOT_CHECKPOINTED + 2)


def test_a_requeue_delay_survives_a_crash_and_a_lost_checkpoint(start: StartDaemon, tmp_path):
    daemon = start("--sync-timeout=60s")
    daemon.create_channel("t", "c")
    with Client(daemon.address()) as client:
        client.publish("t", b"later", b"finished", b"never taken")
        with Client(daemon.address()) as consumer:
            consumer.subscribe("t", "c", ready=2)
            later, finished = consumer.take(2)
            consumer.requeue(later.id, 3_000_000)
            consumer.finish([finished.id])
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
