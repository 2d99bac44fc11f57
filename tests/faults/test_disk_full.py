"""F4: the disk is full for some time: publishes are refused with an error, everything else continues."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import DaemonFailed
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.log.test_last_release import extract
from tests.v2_client import Refused

pytestmark = pytest.mark.privileged

DISK_MB = 6
BODY = b"%04d " + b"x" * 400


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    if os.geteuid():
        pytest.fail("this test mounts a small tmpfs: run it as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True)
    yield folder
    # Lazily, because the fixture of nsqd may stop it later.
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk with a foreign file."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 4096):
            pass
    return filler


def publish_until_refused(daemon: Daemon, first: int = 0) -> tuple[list[bytes], str]:
    """Publish until an error; returns the acknowledged bodies and the error."""
    acknowledged: list[bytes] = []
    with daemon.client() as producer:
        while True:
            body = BODY % (first + len(acknowledged))
            try:
                producer.publishes(body)
            except Refused as refusal:
                return acknowledged, str(refusal)
            acknowledged.append(body)


def drain(daemon: Daemon, expected: set[bytes], channel: str = "c") -> None:
    with daemon.client(msg_timeout=2000) as consumer:
        consumer.subscribes(channel=channel.encode(), ready=200)
        missing = set(expected)
        while missing and (messages := consumer.takes(1, within=60, finishing=True)):
            missing -= {message.body for message in messages}
        assert not missing, f"{len(missing)} lost"
        wait_until(lambda: not daemon.unfinished("t")[channel])


@pytest.mark.parametrize("level", ["os", "fsync"])
def test_a_full_disk_refuses_publishers_only(start: StartDaemon, disk, level):
    daemon = start(f"--durability={level}", "--mem-queue-size=50", data_path=disk)
    for channel in ("live", "late"):
        daemon.create_channel("t", channel)
    with daemon.client(msg_timeout=1000) as consumer, daemon.client() as bystander:
        before = [BODY % number for number in range(1000)]
        bystander.publishes(*before)
        due = time.monotonic() + 2.5
        bystander.defers(b"deferred", 2500)
        filler = fill(disk)

        # Publishes are refused, except for messages that fit into space already allocated to the log.
        acknowledged, refusal = publish_until_refused(daemon, 2000)
        assert refusal == "E_PUB_FAILED PUB failed no space left on device"
        big = [b"x" * 100_000] * 5
        with daemon.client() as producer, pytest.raises(Refused, match="E_MPUB_FAILED MPUB failed no space"):
            producer.publishes_together(big)
        with daemon.client() as producer, pytest.raises(Refused, match="E_DPUB_FAILED DPUB failed no space"):
            producer.defers(big[0], 60_000)
        assert daemon.http("pub", big[0], topic="t")[0] == 503
        assert daemon.http("mpub", b"\n".join(big), topic="t")[0] == 503
        assert daemon.http("pub", big[0], topic="new")[0] == 503
        assert daemon.http("ping") == (500, b"NOK - no space left on device")

        # Consumers continue: FIN, REQ, timeouts and deferred messages need no disk space.
        first = consumer.subscribes(channel=b"live", ready=100).takes(100)
        consumer.requeues(first[0]).finishes(first[2:])
        bodies: list[bytes] = []
        # On a slow machine, the deferred message is due before, and comes after --mem-queue-size others.
        again = {m.body for m in first if m.body == b"deferred" and time.monotonic() >= due}
        while len(again) < 3 or len(bodies) < 898 + len(acknowledged):
            messages = consumer.takes(1, within=60, finishing=True)
            assert messages
            again |= {
                m.body for m in messages if m.attempts == 2 or (m.body == b"deferred" and time.monotonic() >= due)
            }
            bodies += [message.body for message in messages]
        assert again == {b"deferred", first[0].body, first[1].body}
        assert set(before) | set(acknowledged) | {b"deferred"} == set(bodies) | {m.body for m in first[2:]}
        assert daemon.ping().startswith("NOK")

        # When there is space again, nsqd recovers without help.
        filler.unlink()
        wait_until(lambda: daemon.ping() == "OK")
        bystander.publishes(b"after")
        daemon.kill()

    everything = {*before, *acknowledged, b"deferred", b"after"}
    daemon = start(f"--durability={level}", data_path=disk)
    drain(daemon, everything, "late")
    drain(daemon, {b"after"}, "live")


@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_filled_by_messages_recovers_when_they_are_consumed(start: StartDaemon, disk, killed):
    options = ("--max-bytes-per-file=500000", "--sync-timeout=100ms")
    daemon = start(*options, data_path=disk)
    daemon.create_channel("t", "c")
    acknowledged, refusal = publish_until_refused(daemon)
    assert "no space left" in refusal
    assert len(acknowledged) * len(BODY) > DISK_MB * 500_000
    if killed:
        daemon.kill()
        daemon = start(*options, data_path=disk)
    drain(daemon, set(acknowledged))
    wait_until(lambda: daemon.ping() == "OK")
    daemon.publishes(b"after")


def test_an_nsqd_killed_with_a_full_disk_starts_with_all_messages(start: StartDaemon, disk):
    daemon = start("--sync-timeout=50ms", data_path=disk)
    daemon.create_channel("t", "c")
    fill(disk)
    acknowledged, _ = publish_until_refused(daemon)
    daemon.kill()
    daemon = start(data_path=disk)
    with pytest.raises(Refused):
        daemon.publishes(*[b"x" * 100_000] * 10)
    drain(daemon, set(acknowledged))


def test_a_start_without_room_for_the_reserve_keeps_what_is_left_for_checkpoints(start: StartDaemon, disk):
    daemon = start("--sync-timeout=50ms", data_path=disk)
    daemon.create_channel("t", "c")
    daemon.publishes(b"before")
    daemon.kill()
    (disk / "nsq_compat" / "reserve").unlink()
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - 500_000)
    daemon = start("--sync-timeout=50ms", data_path=disk)
    with pytest.raises(Refused, match="E_PUB_FAILED PUB failed no space"):
        daemon.publishes(b"x" * 100_000)
    drain(daemon, {b"before"})
    filler.unlink()
    wait_until(lambda: daemon.ping() == "OK")
    daemon.publishes(b"x" * 100_000)


@pytest.mark.parametrize("option", ["--mirror-accept", "--mirror-to=127.0.0.1:1"])
def test_an_nsqd_with_mirroring_starts_with_a_full_disk(start: StartDaemon, disk, option):
    daemon = start(option, "--mirror-timeout=100ms", data_path=disk)
    daemon.create_channel("t", "c")
    daemon.publishes(b"before")
    daemon.kill()
    fill(disk)
    for _ in range(2):
        daemon = start(option, "--mirror-timeout=100ms", data_path=disk)
        daemon.kill()
        (disk / "nsq_compat" / "reserve").unlink(missing_ok=True)  # as when copies of other nsqds use up its space
        fill(disk)
    drain(start(option, "--mirror-timeout=100ms", data_path=disk), {b"before"})


def test_at_level_memory_a_full_disk_refuses_when_memory_is_used_up(start: StartDaemon, disk):
    daemon = start("--durability=memory", "--mem-queue-size=100", data_path=disk)
    daemon.create_channel("t", "c")
    filler = fill(disk)
    acknowledged, refusal = publish_until_refused(daemon)
    assert refusal == "E_PUB_FAILED PUB failed no space left on device"
    assert len(acknowledged) >= 100
    assert daemon.ping().startswith("NOK")
    drain(daemon, set(acknowledged))
    filler.unlink()
    wait_until(lambda: daemon.ping() == "OK")


def rewind(daemon: Daemon, to: str) -> int:
    """The status of the answer."""
    return daemon.http("channel/rewind", b"", topic="t", channel="c", to=to)[0]


def offsets(daemon: Daemon) -> tuple[int, int]:
    found = json.loads(daemon.http("topic/offsets", topic="t")[1])
    return found["first"], found["next"]


RETAINED = '[[policies]]\ntopic = "t"\nretain_for = "1h"\n'


def test_a_full_disk_refuses_rewinds_which_then_change_nothing(start: StartDaemon, disk, tmp_path):
    config = tmp_path / "nsqd.toml"
    config.write_text(RETAINED)
    daemon = start(f"--config={config}", data_path=disk)
    daemon.create_channel("t", "c")
    bodies = [BODY % number for number in range(500)]
    daemon.publishes(*bodies)
    drain(daemon, set(bodies))
    filler = fill(disk)
    more, _ = publish_until_refused(daemon, len(bodies))
    bodies += more
    drain(daemon, set(more))
    wait_until(lambda: daemon.unfinished("t") == {"c": 0})
    statuses = [200]
    while statuses[-1] == 200:  # a few fit into space that the log has reserved
        statuses.append(rewind(daemon, "latest"))
        assert len(statuses) < 20_000
    assert statuses[-1] == rewind(daemon, "0") == 500
    assert daemon.unfinished("t") == {"c": 0}
    assert bodies[0] in daemon.http("topic/read", None, topic="t", to=1, **{"from": 0})[1]
    filler.unlink()
    wait_until(lambda: daemon.ping() == "OK")
    assert rewind(daemon, "0") == 200
    daemon.kill()
    daemon = start(f"--config={config}", data_path=disk)
    assert offsets(daemon) == (0, len(bodies))
    drain(daemon, set(bodies))


def test_a_disk_filled_by_retained_messages_recovers_when_the_policy_is_shortened(start: StartDaemon, disk, tmp_path):
    config = tmp_path / "nsqd.toml"
    config.write_text(RETAINED)
    (disk / "other").write_bytes(bytes(DISK_MB * 500_000))
    daemon = start(f"--config={config}", "--max-bytes-per-file=200000", "--sync-timeout=50ms", data_path=disk)
    daemon.create_channel("t", "c")
    acknowledged, refusal = publish_until_refused(daemon)
    assert "no space left" in refusal
    drain(daemon, set(acknowledged))
    wait_until(lambda: daemon.unfinished("t") == {"c": 0})
    assert offsets(daemon) == (0, len(acknowledged)), "what is retained is not deleted to make room"
    assert daemon.ping().startswith("NOK")
    config.write_text('[[policies]]\ntopic = "t"\nretain_bytes = 300000\n')
    daemon.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.ping() == "OK")
    wait_until(lambda: offsets(daemon)[0] > 0)
    daemon.publishes(b"after")
    assert offsets(daemon)[1] == len(acknowledged) + 1


def test_a_migration_that_has_no_room_ends_the_start_and_the_next_one_has_every_message(start: StartDaemon, disk):
    data_path = extract(disk) / "os" / "stopped"
    (log,) = data_path.glob("nsq_compat/orders.topic/log.*")
    before = log.read_bytes()
    filler = fill(disk)
    with pytest.raises(DaemonFailed, match=f"FATAL: .*{log}: no space left on device; see The disk is full in"):
        start(data_path=data_path)
    assert log.read_bytes() == before
    filler.unlink()
    daemon = start(data_path=data_path)
    topics = json.loads(daemon.http("stats", format="json")[1])["topics"]
    assert {each["topic_name"] for each in topics} >= {"orders", "held", "paused"}
    status, answer = daemon.http("topic/offsets", topic="orders")
    assert status == 200
    offsets = json.loads(answer)
    assert offsets["next"] - offsets["first"] == 11
    status, frames = daemon.http("topic/read", topic="orders", **{"from": offsets["first"]})
    assert status == 200
    assert all(body in frames for body in (b"alone", b"several", b"behind the checkpoint", b"later"))
