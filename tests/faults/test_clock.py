"""F7: the wall clock of a live process jumps by an hour in either direction; no request waits, and no message is early
or late. F22: what a policy retains for a time.
"""

import glob
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until

LATE = 20.0
"""Tolerance in seconds for a busy machine; far less than an hour."""


class FalseClock:
    """A movable wall clock: libfaketime reads its offset from a file. The monotonic clock is unchanged."""

    def __init__(self, folder: Path) -> None:
        libraries = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not libraries:
            pytest.fail("this test needs libfaketime to move the clock of a process: apt-get install faketime")
        self._file = folder / "offset"
        self.jump("+0")
        environment = {
            "LD_PRELOAD": libraries[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.command = f"env {' '.join(f'{name}={value}' for name, value in environment.items())} {installed_nsqd()}"

    def jump(self, offset: str) -> None:
        other = self._file.with_suffix(".new")
        other.write_text(offset)
        os.replace(other, self._file)


@pytest.fixture
def clock(tmp_path: Path) -> FalseClock:
    folder = tmp_path / "clock"
    folder.mkdir()
    return FalseClock(folder)


def log_hour(daemon: Daemon) -> int:
    """The hour of the last log line."""
    lines = len(daemon.log.splitlines())
    daemon.ping()
    wait_until(lambda: len(daemon.log.splitlines()) > lines)
    return int(daemon.log.splitlines()[-1].split()[2][:2])


@pytest.mark.parametrize("offset", ["-1h", "+1h"])
@pytest.mark.parametrize("level", ["memory", "os"])
def test_a_jump_blocks_no_publisher_and_moves_no_deadline(start: StartDaemon, clock, tmp_path, offset, level):
    daemon = start(f"--durability={level}", "--sync-timeout=100ms", command=clock.command)
    daemon.create_channel("t", "c")
    with daemon.client() as producer, daemon.client(msg_timeout=4000, heartbeat_interval=10_000) as consumer:
        consumer.subscribes(ready=100)
        began = time.monotonic()
        producer.publishes(b"times out").defers(b"deferred", 5000)
        (unanswered,) = consumer.takes(1)
        before = log_hour(daemon)
        clock.jump(offset)
        after = (before + (1 if offset == "+1h" else -1)) % 24
        wait_until(lambda: log_hour(daemon) == after)  # a line of before may still be on its way

        published = time.monotonic()
        bodies = [b"%d" % number for number in range(500)]
        producer.publishes(*bodies)
        assert time.monotonic() - published < LATE
        messages = consumer.takes(500, finishing=True)
        assert [message.body for message in messages] == bodies
        assert all(earlier.id < later.id for earlier, later in pairwise(messages))
        assert messages[0].id > unanswered.id

        came = consumer.takes(1)
        assert 4.0 <= time.monotonic() - began < 4.0 + LATE
        if len(came) == 1:  # on a busy machine both may arrive at once
            came += consumer.takes(1)
        again, deferred = came
        assert (again.body, again.attempts) == (b"times out", 2)
        assert deferred.body == b"deferred"
        assert 5.0 <= time.monotonic() - began < 5.0 + LATE
        consumer.finishes(came)
        wait_until(lambda: daemon.unfinished("t") == {"c": 0})


def test_a_deferred_message_keeps_its_due_time_by_the_wall_clock_across_a_restart(start: StartDaemon, clock):
    daemon = start("--durability=os", command=clock.command)
    daemon.create_channel("t", "c")
    with daemon.client() as producer:
        producer.defers(b"in an hour and two seconds", 3_000_000).defers(b"in two hours", 3_600_000)
    daemon.kill()
    clock.jump("+2999s")
    daemon = start("--durability=os", command=clock.command)
    with daemon.client() as consumer:
        (message,) = consumer.subscribes(ready=100).takes(1, within=60)
        assert message.body == b"in an hour and two seconds"
        assert daemon.unfinished("t") == {"c": 2}


def test_ids_keep_growing_after_a_restart_with_an_earlier_clock(start: StartDaemon, clock):
    daemon = start("--durability=os", command=clock.command)
    daemon.create_channel("t", "c")
    daemon.publishes(b"first")
    daemon.kill()
    clock.jump("-1h")
    daemon = start("--durability=os", command=clock.command)
    daemon.publishes(b"second")
    with daemon.client() as consumer:
        first, second = consumer.subscribes(ready=2).takes(2)
        assert (first.body, second.body) == (b"first", b"second")
        assert first.id < second.id


def test_a_clock_that_jumps_releases_only_what_is_old_by_it_and_no_offset_is_used_again(
    start: StartDaemon, clock, tmp_path
):
    config = tmp_path / "nsqd.toml"
    config.write_text('[[policies]]\ntopic = "t"\nretain_for = "2h"\n')
    options = (f"--config={config}", "--max-bytes-per-file=2000", "--sync-timeout=50ms")
    daemon = start(*options, command=clock.command)
    daemon.create_channel("t", "c")

    def publish_and_finish(begin: int) -> None:
        bodies = [b"%04d" % number + bytes(200) for number in range(begin, begin + 40)]
        daemon.publishes(*bodies)
        assert daemon.consumes(len(bodies)) == bodies

    def offsets() -> tuple[int, int]:
        found = json.loads(daemon.http("topic/offsets", topic="t")[1])
        return found["first"], found["next"]

    publish_and_finish(0)
    for number, offset in enumerate(["-1h", "+1h"], 1):
        clock.jump(offset)
        publish_and_finish(40 * number)
        assert offsets() == (0, 40 * number + 40), "nothing is older than two hours"
    clock.jump("+4h")
    publish_and_finish(120)
    wait_until(lambda: 40 < offsets()[0] < 160, 150)  # files are deleted as a whole
    first, end = offsets()
    assert end == 160
    daemon.kill()
    clock.jump("+0")
    daemon = start(*options, command=clock.command)
    assert offsets() == (first, end)
    assert daemon.http("topic/read", None, topic="t", **{"from": 0})[0] == 410
    # What was finished just before the kill may come again, so nothing is consumed here.
    daemon.publishes(*[b"%04d" % number for number in range(160, 200)])
    assert offsets()[1] == 200
