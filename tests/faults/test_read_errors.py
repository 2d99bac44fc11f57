"""F3 on a live process: strace makes its reads fail, as a disk does that is away for a moment."""

import time

from tests.faults.client import Client
from tests.faults.test_sync_failure import failing

MESSAGES = 20_000
SECONDS = 1.5


def test_a_moment_of_read_errors_costs_no_message_and_is_said_once(start):
    daemon = start("--mem-queue-size=10", "--max-bytes-per-file=300000", "--sync-timeout=200ms")
    daemon.create_channel("t", "c")
    bodies = [b"%06d" % number + b"x" * 60 for number in range(MESSAGES)]
    with Client(daemon.address()) as producer:
        for first in range(0, MESSAGES, 500):
            producer.publish_together("t", bodies[first : first + 500])
    seen: list[bytes] = []
    with Client(daemon.address()) as consumer:
        with failing(daemon, "pread64"):
            consumer.subscribe("t", "c", 100)
            until = time.monotonic() + SECONDS
            while "cannot read" not in (health := daemon.ping()) or time.monotonic() < until:
                assert time.monotonic() < until + 30, health
                messages = consumer.messages(0.1)
                seen += [message.body for message in messages]
                consumer.finish(message.id for message in messages)
            assert daemon.http("ping")[0] == 500
            assert "nsqd_healthy 0.0" in daemon.http("metrics")[1].decode()
        while len(seen) < MESSAGES:
            messages = consumer.messages(10)
            assert messages, f"{MESSAGES - len(seen)} messages do not come"
            seen += [message.body for message in messages]
            consumer.finish(message.id for message in messages)
    assert seen == bodies
    until = time.monotonic() + 10
    while daemon.ping() != "OK":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
    assert daemon.log.count("ERROR") == 1, daemon.log
    assert daemon.log.count("everything can be read again") == 1
