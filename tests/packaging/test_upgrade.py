"""Upgrades and ways back, as in docs/upgrading.md, between built versions: data paths, and pairs with mirroring."""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from nsq_compat.log.segment import FIRST_GROUP, encode_segment_header
from nsq_compat.protocol.storage_schema import SEGMENT_MAGIC
from nsq_conformance.daemon_process import DaemonFailed
from tests.faults.daemon import Daemon, wait_until
from tests.packaging.release import Release
from tests.packaging.versions import BEFORE, command
from tests.v2_client import GONE, Client, Refused

pytestmark = pytest.mark.timeout(600)

NOW = ""
"""The version of this checkout."""
SAME, OTHER = BEFORE
LATER_MS = 3_600_000
Start = Callable[..., Daemon]


@pytest.fixture
def start(release: Release, tmp_path: Path) -> Iterator[Start]:
    """Start an nsqd of a version on a data path, with options."""
    daemons: list[Daemon] = []

    def start_nsqd(version: str, data_path: str = "data", *options: str) -> Daemon:
        (tmp_path / data_path).mkdir(exist_ok=True)
        daemon = Daemon(tmp_path / data_path, options, command(release, version))
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start_nsqd
    for daemon in daemons:
        daemon.end()
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture
def become(release: Release) -> Callable[[Daemon, str], None]:
    """Stop an nsqd, and start another version with the same flags and addresses."""

    def become(daemon: Daemon, version: str) -> None:
        flags = next(index for index, each in enumerate(daemon.arguments) if each.startswith("--"))
        assert daemon.stop() == 0
        daemon.arguments[:flags] = shlex.split(command(release, version))
        daemon.start()

    return become


# --- Data paths -------------------------------------------------------------------------------------------------------

WAITING = [b"waiting %d" % number for number in range(500)]


def fill(nsqd: Daemon) -> Client:
    """Leave a message in every state, of which `check_all_is_served` knows. Returns the consumer of those in flight."""
    for channel in ("archive", "paused"):
        nsqd.create_channel("orders", channel)
    nsqd.create_channel("held", "all")
    nsqd.control("pause", "orders", "paused")
    nsqd.control("pause", "held")
    consumer = nsqd.client()
    consumer.subscribes(b"orders", b"archive", ready=4)
    with nsqd.client() as producer:
        producer.publishes(b"finished", b"requeued", b"in flight", b"in flight too", topic=b"orders")
        producer.defers(b"deferred", LATER_MS, b"orders")
        messages = {each.body: each for each in consumer.takes(4)}
        consumer.says(b"RDY 0\n")
        producer.publishes_together(WAITING, b"orders")
        producer.publishes(b"held", topic=b"held")
        producer.publishes(b"for no channel", topic=b"bare")
    # Last, because publishes alone write no further checkpoint, and one that knows of the FIN should know all.
    consumer.requeues(messages[b"requeued"], LATER_MS)
    consumer.finishes([messages[b"finished"]])
    wait_until(lambda: nsqd.channel_stats("orders", "archive")["deferred_count"] == 2)
    return consumer


def check_all_is_there(nsqd: Daemon) -> None:
    """What `fill` left is there, and still paused."""
    archive, paused = (nsqd.channel_stats("orders", name) for name in ("archive", "paused"))
    assert (archive["depth"], archive["deferred_count"]) == (len(WAITING) + 2, 2)
    assert (paused["depth"], paused["deferred_count"]) == (len(WAITING) + 4, 1)
    assert (archive["paused"], paused["paused"]) == (False, True)
    [held] = nsqd.stats("held")
    assert (held["paused"], held["depth"]) == (True, 1)
    assert [each["depth"] for each in nsqd.stats("bare")] == [1]


def check_all_is_served(nsqd: Daemon) -> None:
    """It is delivered, too."""
    check_all_is_there(nsqd)
    assert sorted(nsqd.consumes(len(WAITING) + 2, b"orders", b"archive")) == sorted(
        [b"in flight", b"in flight too", *WAITING]
    )
    nsqd.control("unpause", "orders", "paused")
    assert len(nsqd.consumes(len(WAITING) + 4, b"orders", b"paused")) == len(WAITING) + 4
    nsqd.control("unpause", "held")
    assert nsqd.consumes(1, b"held", b"all") == [b"held"]
    assert nsqd.consumes(1, b"bare", b"first") == [b"for no channel"]


@pytest.mark.parametrize("version", BEFORE)
def test_what_the_version_before_wrote_is_served(start: Start, version: str):
    old = start(version)
    with fill(old):
        assert old.stop() == 0
    check_all_is_served(start(NOW))


@pytest.mark.parametrize("version", BEFORE)
def test_what_the_version_before_left_when_it_was_killed_is_served(start: Start, version: str):
    old = start(version)
    with fill(old):
        # What was finished after the last checkpoint would be delivered again.
        wait_until(lambda: old.checkpoint_says_unfinished("orders", "archive") == len(WAITING) + 4)
        old.kill()
    check_all_is_served(start(NOW))


def test_with_the_same_data_path_a_way_back_needs_nothing_else(start: Start, become):
    nsqd = start(SAME)
    with fill(nsqd):
        become(nsqd, NOW)
    check_all_is_there(nsqd)
    become(nsqd, SAME)
    check_all_is_there(nsqd)
    with nsqd.client() as producer:
        producer.publishes(b"more", topic=b"held")
    become(nsqd, NOW)
    assert nsqd.stats("held")[0]["depth"] == 2


def test_the_copy_from_before_an_upgrade_is_a_way_back(start: Start, tmp_path: Path):
    old = start(OTHER)
    with fill(old):
        old.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "before")
    new = start(NOW)
    check_all_is_served(new)
    new.stop()
    check_all_is_served(start(OTHER, "before"))


def files_of(data_path: Path) -> dict[str, bytes]:
    """The contents of all files, by path."""
    return {str(path): path.read_bytes() for path in data_path.rglob("*") if path.is_file()}


def test_a_data_path_of_a_later_version_is_refused_and_stays_as_it_is(start: Start, tmp_path: Path):
    nsqd = start(NOW)
    with fill(nsqd):
        nsqd.stop()
    written = files_of(tmp_path / "data")
    segments = {Path(path): data for path, data in written.items() if data.startswith(SEGMENT_MAGIC)}
    assert len(segments) == 3
    for path, data in segments.items():
        path.write_bytes(encode_segment_header(1, b"nsq\x04" + bytes(4)) + data[FIRST_GROUP:])
    later = files_of(tmp_path / "data")
    with pytest.raises(
        DaemonFailed, match="written by a later version of nsq_compat; see Go back in docs/upgrading.md"
    ):
        nsqd.start()
    assert files_of(tmp_path / "data") == later
    for path, data in segments.items():
        path.write_bytes(data)
    check_all_is_served(start(NOW))


# --- Pairs ------------------------------------------------------------------------------------------------------------


def mirror(nsqd: Daemon) -> dict[str, Any]:
    status, answer = nsqd.http("mirror")
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def wait_until_in_sync(primary: Daemon) -> None:
    wait_until(lambda: mirror(primary)["standby"]["state"] == "in sync")


def adopt(standby: Daemon) -> None:
    """Have it take over what it has a copy of."""
    [primary] = mirror(standby)["primaries"]
    status, answer = standby.http("mirror/adopt", b"", identity=primary["identity"])
    assert status == 200, answer


def start_pair(start: Start, of_primary: str, of_standby: str) -> tuple[Daemon, Daemon]:
    accepts = ("--node-id=2", "--mirror-accept", "--mirror-takeover-after=manual")
    standby = start(of_standby, "standby", *accepts)
    mirrors = ("--node-id=1", f"--mirror-to={standby.tcp_address}", "--mirror-timeout=60s")
    return start(of_primary, "primary", *mirrors), standby


@pytest.mark.parametrize(("of_primary", "of_standby"), [(SAME, NOW), (OTHER, NOW)])
def test_a_standby_of_another_version_takes_over_everything(start: Start, of_primary: str, of_standby: str):
    primary, standby = start_pair(start, of_primary, of_standby)
    wait_until_in_sync(primary)
    with fill(primary):
        wait_until(lambda: primary.checkpoint_says_unfinished("orders", "archive") == len(WAITING) + 4)
        wait_until_in_sync(primary)
    primary.stop()
    adopt(standby)
    check_all_is_served(standby)


class Producer:
    """Publishes one message after the other to an nsqd that comes and goes, and notes those that were answered."""

    def __init__(self, nsqd: Daemon) -> None:
        self.acknowledged: list[bytes] = []
        self._nsqd = nsqd
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def publishes_more(self) -> None:
        """Wait until some more messages are acknowledged."""
        enough = len(self.acknowledged) + 100
        wait_until(lambda: len(self.acknowledged) >= enough)

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            with suppress(*GONE, Refused, KeyError), self._nsqd.client(timeout=60) as client:
                while not self._ended.is_set():
                    number += 1
                    client.publishes(body := b"message %d" % number)
                    self.acknowledged.append(body)
            self._ended.wait(0.02)


@pytest.mark.parametrize("version", BEFORE)
def test_a_pair_is_upgraded_under_traffic_and_loses_nothing(start: Start, become, version: str):
    primary, standby = start_pair(start, version, version)
    primary.create_channel("t", "c")
    with Producer(primary) as producer:
        wait_until_in_sync(primary)
        producer.publishes_more()
        for nsqd in (standby, primary):
            become(nsqd, NOW)
            producer.publishes_more()
            wait_until_in_sync(primary)
        producer.publishes_more()
    assert mirror(primary)["standby"]["state"] == "in sync"
    primary.kill()
    adopt(standby)
    taken = standby.consumes(standby.unfinished("t")["c"])
    assert set(taken) >= set(producer.acknowledged)
