"""F23 and F24: machines that are lost, and links between a primary and its standby that fail (P10).

A lost machine is an nsqd that is killed and whose data path is deleted. What it acknowledged comes from the standby.
"""

import json
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq_compat.protocol import mirror as mirror_protocol
from nsq_compat.protocol.mirror import Change
from nsq_conformance.auth_server import EVERYTHING, AuthServer
from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import LONG_ROUNDS, StartDaemon
from tests.faults.daemon import Daemon, Directory, wait_until
from tests.faults.test_kill import report, settings
from tests.faults.traffic import Traffic
from tests.v2_client import Client, Message, Refused, pub, sized

LEVELS = ("os", "fsync")
PATIENT = "--mirror-timeout=60s"
TAKES_OVER_SOON = "--mirror-takeover-after=300ms"


class Machines:
    """nsqds, each with a data path and a node id of its own."""

    def __init__(self, start: StartDaemon, folder: Path) -> None:
        self._start = start
        self._folder = folder
        self._count = 0

    def start(self, *options: str, data_path: Path | None = None) -> Daemon:
        self._count += 1
        if data_path is None:
            data_path = self._folder / f"machine{self._count}"
            data_path.mkdir()
        return self._start(f"--node-id={self._count}", *options, data_path=data_path)

    def standby(self, *options: str, data_path: Path | None = None) -> Daemon:
        return self.start("--mirror-accept", "--mirror-takeover-after=manual", *options, data_path=data_path)

    def primary(self, standby: Daemon, *options: str, data_path: Path | None = None) -> Daemon:
        """A primary in sync. On a busy machine it does not give up its standby soon, unless `options` say so."""
        primary = self.start(f"--mirror-to={standby.tcp_address}", PATIENT, *options, data_path=data_path)
        wait_until(partial(is_in_sync, primary))
        return primary


@pytest.fixture
def machines(start: StartDaemon, tmp_path: Path) -> Machines:
    return Machines(start, tmp_path)


def mirror(daemon: Daemon) -> dict[str, Any]:
    status, answer = daemon.http("mirror")
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def has_logged(daemon: Daemon, text: str) -> bool:
    return text in daemon.log


def is_in_sync(primary: Daemon) -> bool:
    return bool(mirror(primary)["standby"]["state"] == "in sync")


def is_lost(primary: Daemon) -> bool:
    return bool(mirror(primary)["standby"]["state"] != "in sync")


def lose(daemon: Daemon) -> None:
    """The machine burns down."""
    daemon.kill()
    shutil.rmtree(daemon.data_path)


def adopt(standby: Daemon) -> list[str]:
    """Have it take over what it has a copy of; returns the topics."""
    topics: list[str] = []
    for primary in mirror(standby)["primaries"]:
        if not primary["taken_over"]:
            status, answer = standby.http("mirror/adopt", b"", identity=primary["identity"])
            assert status == 200, answer
            topics += json.loads(answer)["topics"]
    return topics


# --- Lost machines ----------------------------------------------------------------------------------------------------


def lose_machines(machines: Machines, traffic: Traffic, rounds: int) -> None:
    """The primary is lost in each round. Its standby takes over, and is the primary of the next round."""
    random = traffic.random
    standby = machines.standby(*settings(random, *LEVELS))
    primary = machines.primary(standby, *settings(random, *LEVELS))
    for name in "abc":
        traffic.add_channel(primary, traffic.orders, name)
    for number in range(rounds):
        traffic.run(primary, random.uniform(0.2, 1.2), Daemon.kill)
        shutil.rmtree(primary.data_path)
        assert set(adopt(standby)) <= {"orders", "bare"}
        if number == rounds // 2:
            traffic.add_channel(standby, traffic.orders, "later")
        survivor = standby
        survivor.kill()  # after a take-over, what it took over is its own
        standby = machines.standby(*settings(random, *LEVELS))
        primary = machines.primary(standby, *settings(random, *LEVELS), data_path=survivor.data_path)
    traffic.drain(primary)
    standby.stop()


def check_no_message_is_lost_with_a_machine(machines: Machines, traffic: Traffic, rounds: int) -> None:
    lose_machines(machines, traffic, rounds)
    report(traffic)
    assert traffic.check() == []
    assert traffic.refusals == []
    assert all(ledger.acknowledged for ledger in traffic.ledgers), "otherwise the test would prove nothing"


@pytest.mark.timeout(600)
def test_acknowledged_messages_survive_the_loss_of_a_machine(machines, seed, tmp_path):
    check_no_message_is_lost_with_a_machine(machines, Traffic(seed, tmp_path), 4)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_acknowledged_messages_survive_the_loss_of_many_machines(machines, seed, tmp_path):
    check_no_message_is_lost_with_a_machine(machines, Traffic(seed, tmp_path), LONG_ROUNDS)


def test_the_checker_detects_what_an_asynchronous_mirror_loses(machines, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    standby = machines.standby()
    primary = machines.primary(standby, "--mirror-mode=async")
    traffic.add_channel(primary, traffic.orders, "a")

    def end(primary: Daemon) -> None:
        standby.hang()
        time.sleep(0.5)
        primary.kill()

    traffic.run(primary, 1, end)
    standby.go_on()
    adopt(standby)
    traffic.drain(standby)
    assert any("acknowledged but lost" in problem for problem in traffic.check())


# --- Taking over ------------------------------------------------------------------------------------------------------


def test_what_a_consumer_sees_of_a_message_stays_the_same(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    primary.create_channel("t", "c")
    primary.create_channel("t", "paused")
    primary.control("pause", "t", "paused")
    with primary.client() as producer, primary.client() as consumer:
        producer.publishes(b"waits", b"finished", b"failed", b"put off")
        sent = time.monotonic()
        producer.defers(b"deferred", 8000)
        consumer.subscribes(ready=10)
        taken = {message.body: message for message in consumer.takes(4)}
        consumer.requeues(taken[b"failed"], 0)
        consumer.requeues(taken[b"put off"], 8000)
        again = consumer.takes(1)
        assert [each.body for each in again] == [b"failed"]
        copy = standby.data_path / "nsq_compat" / "mirrors" / mirror(standby)["primaries"][0]["identity"]
        wait_until(lambda: standby.checkpoint_says_unfinished("t", "c", copy) == 5)
        consumer.finishes([taken[b"finished"]])
        wait_until(lambda: standby.checkpoint_says_unfinished("t", "c", copy) == 4)  # and so all of the above
        lose(primary)
    assert adopt(standby) == ["t"]
    assert {each["channel_name"]: each["paused"] for each in standby.channels("t")} == {"c": False, "paused": True}
    with standby.client() as consumer:
        consumer.subscribes(ready=10)
        found: dict[bytes, Message] = {}
        came: dict[bytes, float] = {}
        while len(found) < 4 and (messages := consumer.takes(1, within=60)):
            found |= {message.body: message for message in messages}
            came |= {message.body: time.monotonic() - sent for message in messages}
        assert found.keys() == {b"waits", b"failed", b"deferred", b"put off"}
        assert all(came[body] > 7.9 for body in (b"deferred", b"put off")), "a deferred message came early"
        for body in (b"waits", b"failed", b"put off"):
            assert (found[body].id, found[body].timestamp_ns) == (taken[body].id, taken[body].timestamp_ns)
        assert found[b"failed"].attempts in (2, 3)  # its last delivery may have followed the last checkpoint
        assert (found[b"deferred"].attempts, found[b"put off"].attempts) == (1, 2)


def test_a_topic_of_the_standby_gets_the_messages_of_the_primarys_topic(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    bodies = {}
    for daemon, name in ((primary, b"primary"), (standby, b"standby")):
        daemon.create_channel("t", "c")
        daemon.create_channel("t", name.decode())
        bodies[name] = [b"%b %d" % (name, number) for number in range(500)]
        with daemon.client() as producer:
            producer.publishes_together(bodies[name])
            producer.defers(b"deferred " + name, 1000)
    lose(primary)
    assert adopt(standby) == ["t"]
    standby.kill()  # what was merged is on the disk
    standby = machines.standby(data_path=standby.data_path)
    both = sorted([*bodies[b"primary"], *bodies[b"standby"], b"deferred primary", b"deferred standby"])
    assert sorted(standby.consumes(len(both))) == both
    only = [*bodies[b"primary"], b"deferred primary"]
    assert sorted(standby.consumes(len(only), channel=b"primary")) == sorted(only)
    wait_until(lambda: set(standby.unfinished("t").values()) == {0, len(bodies[b"standby"]) + 1})


def test_the_standby_waits_until_no_nsqlookupd_lists_the_primary(machines, directories: list[Directory]):
    lookup = [each.flag for each in directories]
    standby = machines.start("--mirror-accept", TAKES_OVER_SOON, *lookup)
    primary = machines.primary(standby, *lookup)
    primary.create_channel("t", "c")
    primary.publishes(b"m")
    wait_until(lambda: all("t" in each.topics() for each in directories))
    primary.hang()  # nsqlookupd still lists it
    wait_until(lambda: not mirror(standby)["primaries"][0]["connected"])
    time.sleep(1.0)  # longer than --mirror-takeover-after: nothing may happen
    assert mirror(standby)["primaries"][0]["taken_over"] is None
    primary.go_on()
    wait_until(partial(is_in_sync, primary))
    lose(primary)
    assert standby.consumes(1) == [b"m"]
    wait_until(lambda: all("t" in each.topics() for each in directories))


def test_a_standby_that_drains_and_so_leaves_nsqlookupd_takes_nothing_over_by_itself(machines, directories):
    lookupd = directories[0].flag
    standby = machines.start("--mirror-accept", TAKES_OVER_SOON, lookupd)
    primary = machines.primary(standby, lookupd)
    primary.create_channel("t", "c")
    primary.publishes(b"m")
    standby.create_channel("own", "c")
    standby.publishes(b"n", topic=b"own")  # so that the drain goes on
    wait_until(lambda: directories[0].topics() == {"t", "own"})
    assert standby.asks("PUT", "/config/drain", b"true").status == 200
    wait_until(lambda: directories[0].topics() == {"t"})
    primary.hang()
    wait_until(lambda: not mirror(standby)["primaries"][0]["connected"])
    time.sleep(1.0)  # longer than --mirror-takeover-after: nothing may happen
    assert mirror(standby)["primaries"][0]["taken_over"] is None
    assert adopt(standby) == ["t"]


def test_deferred_messages_of_a_rewound_channel_are_taken_over(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    for daemon in (standby, primary):  # so that the copy is merged
        daemon.create_channel("t", "c")
    with primary.client() as producer:
        began = time.monotonic()
        for number in range(5):
            producer.defers(b"%d" % number, 3000)
    status, answer = primary.http("channel/rewind", b"", topic="t", channel="c", to=0, drop_pending="true")
    assert status == 200, answer
    lose(primary)
    adopt(standby)
    assert sorted(standby.consumes(5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert time.monotonic() - began > 2.99


def test_two_that_refuse_without_each_other_still_take_over(machines):
    first = machines.standby()
    second = machines.primary(first, "--mirror-accept", "--mirror-takeover-after=manual", "--mirror-lost=refuse")
    first.stop()
    options = (
        "--mirror-accept", "--mirror-takeover-after=manual", f"--tcp-address={first.tcp_address}",
        f"--mirror-to={second.tcp_address}", "--mirror-lost=refuse", "--mirror-timeout=5s",
    )  # fmt: skip
    first = machines.start(*options, data_path=first.data_path)
    for daemon in (first, second):
        wait_until(partial(is_in_sync, daemon))
    for daemon, body in ((first, b"first"), (second, b"second")):
        wait_until(partial(is_in_sync, daemon))
        daemon.create_channel("t", "c")
        daemon.publishes(body)
    second.create_channel("t", "only-there")
    lose(second)
    assert adopt(first) == ["t"]
    assert first.unfinished("t") == {"c": 2, "only-there": 0}
    assert first.stop() == 0
    first = machines.start(*options, data_path=first.data_path)
    assert sorted(first.consumes(2)) == [b"first", b"second"]


def test_a_primary_starts_with_topics_of_which_only_nsqd_dat_knows(machines):
    standby = machines.standby()
    primary = machines.start()
    primary.create_channel("t", "c")
    primary.control("pause", "t")
    primary.control("pause", "t", "c")
    assert primary.stop() == 0
    shutil.rmtree(primary.data_path / "nsq_compat")
    primary = machines.primary(standby, data_path=primary.data_path)
    assert [each["paused"] for each in primary.stats()] == [True]


def test_a_primary_that_is_back_at_once_with_an_empty_disk_is_taken_over(machines, directories: list[Directory]):
    lookupd = f"--lookupd-tcp-address={directories[0].tcp_address}"
    standby = machines.start("--mirror-accept", TAKES_OVER_SOON, lookupd)
    primary = machines.primary(standby, lookupd)
    primary.create_channel("t", "c")
    primary.publishes(b"before")
    lose(primary)
    again = machines.primary(standby, lookupd, f"--tcp-address={primary.tcp_address}")  # and is listed
    wait_until(partial(has_logged, standby, "has taken over 1 topics"))
    assert standby.consumes(1) == [b"before"]
    assert is_in_sync(again)


@pytest.mark.parametrize("level", LEVELS)
def test_the_log_of_a_primary_can_be_read_also_while_publishes_are_refused(machines, level):
    standby = machines.standby()
    options = (f"--durability={level}", "--mirror-lost=refuse", "--mirror-timeout=100ms")
    primary = machines.primary(standby, *options)
    primary.publishes(b"0", b"1", b"2")

    def reads() -> tuple[int, str]:
        answer = primary.asks("GET", "/topic/read?topic=t&from=1")
        assert answer.status == 200
        assert json.loads(primary.http("topic/offsets", topic="t")[1])["next"] == 3
        return len(answer.body), answer.headers["X-NSQ-Next-Offset"]

    before = reads()
    assert before[1] == "3"
    standby.kill()
    wait_until(partial(is_lost, primary))
    assert reads() == before
    assert primary.http("channel/create", b"", topic="t", channel="new") == (503, b'{"message":"NOT_MIRRORED"}')
    primary.kill()
    primary = machines.start(f"--mirror-to={standby.tcp_address}", *options, data_path=primary.data_path)
    assert reads() == before


def test_checkpoints_are_written_while_publishes_are_refused(machines):
    standby = machines.standby()
    primary = machines.primary(standby, "--mirror-lost=refuse", "--mirror-timeout=100ms", "--sync-timeout=50ms")
    primary.create_channel("t", "c")
    primary.publishes(*(b"%d" % number for number in range(20)))
    standby.kill()
    wait_until(partial(is_lost, primary))
    assert len(primary.consumes(20)) == 20
    wait_until(lambda: primary.checkpoint_says_unfinished("t", "c") == 0)
    assert primary.ping() == "OK"
    assert "cannot write" not in primary.log


def test_a_primary_that_returns_forgets_what_was_taken_over_and_keeps_the_rest(machines):
    standby = machines.standby()
    primary = machines.primary(standby, "--mirror-timeout=5s")
    primary.create_channel("t", "c")
    taken_over = [b"%d" % number for number in range(300)]
    with primary.client() as producer:
        producer.publishes(*taken_over)
        producer.defers(b"deferred", 1000)
    standby.kill()
    wait_until(partial(is_lost, primary))
    with primary.client() as producer:
        producer.publishes(b"only here", b"here, too")
        producer.defers(b"deferred here", 1000)
    primary.kill()
    standby = machines.standby(f"--tcp-address={standby.tcp_address}", data_path=standby.data_path)
    assert adopt(standby) == ["t"]
    for _ in range(2):  # also at its next start
        primary = machines.primary(standby, data_path=primary.data_path)
        assert primary.unfinished("t") == {"c": 3}
        primary.kill()
    primary = machines.primary(standby, data_path=primary.data_path)
    assert sorted(primary.consumes(3)) == [b"deferred here", b"here, too", b"only here"]
    assert sorted(standby.consumes(301)) == sorted([*taken_over, b"deferred"])
    wait_until(lambda: primary.unfinished("t") == standby.unfinished("t") == {"c": 0})
    primary.stop()  # which sends its last checkpoint
    shutil.rmtree(primary.data_path)
    assert adopt(standby) == ["t"]
    assert standby.unfinished("t") == {"c": 0}


def lose_power(primary: Daemon, *lost: str, kept: float = 0.5) -> None:
    """It ends, and so does the system, which had written `kept` of each log, and nothing of the `lost` topics."""
    primary.kill()
    for path in primary.data_path.glob("nsq_compat/*.topic/log.*"):
        content = path.read_bytes().rstrip(b"\0")
        path.write_bytes(content[: int(kept * len(content))])
    for topic in lost:
        shutil.rmtree(primary.data_path / "nsq_compat" / f"{topic}.topic")
    path = primary.data_path / "nsq_compat" / "identity"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "an earlier one"}))


def everything(*daemons: Daemon, topic: str = "t") -> list[bytes]:
    """The bodies of all messages of the channel c, sorted."""
    bodies: list[bytes] = []
    for daemon in daemons:
        has_topic = topic in {each["topic_name"] for each in daemon.stats()}
        if has_topic and (count := daemon.unfinished(topic).get("c")):
            bodies += daemon.consumes(count, topic.encode())
    return sorted(bodies)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_what_a_primary_has_lost_with_its_power_comes_from_the_standby(machines, kept):
    standby = machines.standby()
    primary = machines.primary(standby)
    bodies: dict[str, list[bytes]] = {}
    for name in ("t", "new"):
        primary.create_channel(name, "c")
        bodies[name] = [b"%b %d" % (name.encode(), number) for number in range(200)]
        with primary.client() as producer:
            for body in bodies[name]:  # each is a group of the log
                producer.publishes(body, topic=name.encode())
    lose_power(primary, "new", kept=kept)
    primary = machines.primary(standby, data_path=primary.data_path)
    assert "messages are missing here that the standby has, so it takes over their topics: new, t" in primary.log
    primary.publishes(b"later")
    wait_until(lambda: sum(each.unfinished("t").get("c", 0) for each in (primary, standby)) == len(bodies["t"]) + 1)
    assert everything(primary, standby) == sorted([*bodies["t"], b"later"])
    assert everything(primary, standby, topic="new") == sorted(bodies["new"])
    # From then on it is as before: another loss costs nothing either.
    primary.publishes(b"latest")
    lose_power(primary, kept=0.5)
    primary = machines.primary(standby, data_path=primary.data_path)
    assert b"latest" in everything(standby)


def test_channels_that_a_primary_has_lost_with_its_power_come_from_the_standby(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    for name in ("t", "new"):
        for channel in ("c", "d", "e#ephemeral"):
            primary.create_channel(name, channel)
        primary.publishes(b"before", topic=name.encode())
    lose_power(primary, "new", kept=0.0)
    (primary.data_path / "nsqd.dat").unlink(missing_ok=True)
    primary = machines.primary(standby, data_path=primary.data_path)
    for name in ("t", "new"):
        primary.publishes(b"after", topic=name.encode())
        assert primary.unfinished(name) == standby.unfinished(name) == {"c": 1, "d": 1}
    primary.kill()  # and they are in the new copy, too
    assert adopt(standby) == ["new", "t"]
    for name in ("t", "new"):
        assert standby.unfinished(name) == {"c": 2, "d": 2}


def test_topics_of_which_a_primary_has_lost_nothing_stay_there(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    for name in ("t", "whole"):
        primary.create_channel(name, "c")
        with primary.client() as producer:
            producer.publishes(b"1", b"2", topic=name.encode())
    primary.control("pause", "whole", "c")
    primary.kill()
    (path,) = primary.data_path.glob("nsq_compat/t.topic/log.*")
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-1])
    primary = machines.primary(standby, data_path=primary.data_path)
    assert standby.unfinished("t") == {"c": 2}
    assert primary.unfinished("t") == {"c": 0}
    assert primary.unfinished("whole") == {"c": 2}
    assert [each["topic_name"] for each in standby.stats()] == ["t"]
    lose(primary)
    assert adopt(standby) == ["t", "whole"]
    assert standby.unfinished("whole") == {"c": 2}
    assert [each["paused"] for each in standby.channels("whole")] == [True]


def test_a_primary_that_has_lost_its_power_serves_without_its_standby_and_loses_nothing_when_that_returns(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    primary.create_channel("t", "c")
    bodies = [b"%d" % number for number in range(100)]
    with primary.client() as producer:
        for body in bodies:
            producer.publishes(body)
    lose_power(primary)
    standby.hang()
    later = []
    for number in range(3):  # also over several starts
        options = (f"--mirror-to={standby.tcp_address}", "--mirror-timeout=100ms")
        primary = machines.start(*options, data_path=primary.data_path)
        later.append(b"later %d" % number)
        primary.publishes(later[-1])
        if number < 2:
            primary.kill()
    standby.go_on()
    wait_until(partial(is_in_sync, primary))
    assert everything(standby) == sorted(bodies)
    assert everything(primary) == later


def test_what_an_older_data_path_lacks_comes_from_the_standby(machines, tmp_path):
    standby = machines.standby()
    primary = machines.primary(standby)
    primary.create_channel("t", "c")
    primary.stop()
    older = shutil.copytree(primary.data_path, tmp_path / "older")
    primary = machines.primary(standby, data_path=primary.data_path)
    primary.publishes(b"later")
    primary.kill()
    restored = machines.start(f"--mirror-to={standby.tcp_address}", data_path=older)
    wait_until(partial(has_logged, restored, "another nsqd with a copy of its data path was here in epoch 2"))
    restored.stop()
    machines.primary(standby, data_path=older)
    assert everything(standby) == [b"later"]


def test_a_topic_that_was_created_again_without_the_standby_is_not_taken_for_lost(machines):
    standby = machines.standby()
    primary = machines.primary(standby, "--mirror-timeout=100ms")
    for name in ("t", "gone"):
        primary.create_channel(name, "c")
        with primary.client() as producer:
            producer.publishes(*(b"before %d" % number for number in range(10)), topic=name.encode())
    standby.kill()
    wait_until(partial(is_lost, primary))
    for name in ("t", "gone"):
        primary.control("delete", name)
    primary.create_channel("t", "c")
    primary.publishes(b"after")
    primary.kill()
    standby = machines.standby(f"--tcp-address={standby.tcp_address}", data_path=standby.data_path)
    primary = machines.primary(standby, data_path=primary.data_path)
    assert "messages are missing here" not in primary.log
    assert standby.stats() == []
    assert everything(primary) == [b"after"]


def test_a_topic_that_was_created_again_is_not_taken_for_the_one_that_was_taken_over(machines):
    standby = machines.standby()
    primary = machines.primary(standby, "--mirror-timeout=100ms")
    primary.create_channel("t", "c")
    primary.publishes(*(b"before %d" % number for number in range(10)))
    standby.kill()
    wait_until(partial(is_lost, primary))
    primary.control("delete", "t")
    primary.create_channel("t", "c")
    primary.publishes(*(b"after %d" % number for number in range(20)))
    elsewhere = machines.standby(data_path=standby.data_path)  # the primary cannot reach it there
    assert adopt(elsewhere) == ["t"]
    elsewhere.stop()
    machines.standby(f"--tcp-address={standby.tcp_address}", data_path=standby.data_path)
    wait_until(partial(is_in_sync, primary))
    assert sorted(primary.consumes(20)) == sorted(b"after %d" % number for number in range(20))


def test_a_wrong_take_over_costs_duplicates_and_no_message(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    primary.create_channel("t", "c")
    primary.publishes(*(b"%d" % number for number in range(100)))
    assert adopt(standby) == ["t"]  # the primary lives
    wait_until(lambda: primary.unfinished("t") == {"c": 0})
    wait_until(partial(is_in_sync, primary))
    primary.publishes(b"later")
    assert sorted(standby.consumes(100)) == sorted(b"%d" % number for number in range(100))
    lose(primary)
    assert adopt(standby) == ["t"]
    assert standby.consumes(1) == [b"later"]


def test_two_nsqds_mirror_each_other_and_a_standby_has_several_primaries(machines):
    first = machines.standby()
    second = machines.start(
        "--mirror-accept", "--mirror-takeover-after=manual", f"--mirror-to={first.tcp_address}", PATIENT
    )
    address, http = first.tcp_address, first.http_address
    first.stop()
    first = machines.start(
        "--mirror-accept",
        "--mirror-takeover-after=manual",
        f"--tcp-address={address}",
        f"--http-address={http}",
        f"--mirror-to={second.tcp_address}",
        "--mirror-timeout=5s",  # its standby will be lost
        data_path=first.data_path,
    )
    third = machines.primary(first)
    for daemon in (first, second, third):
        wait_until(partial(is_in_sync, daemon))
        daemon.create_channel("t", "c")
    for number, daemon in enumerate((first, second, third)):
        daemon.publishes(b"%d" % number)
    lose(second)
    lose(third)
    adopt(first)
    assert sorted(first.consumes(3)) == [b"0", b"1", b"2"]


# --- A standby that is away -------------------------------------------------------------------------------------------


def test_the_standby_is_killed_again_and_again_and_catches_up(machines, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    standby = machines.standby(*settings(traffic.random, *LEVELS))
    address = f"--tcp-address={standby.tcp_address}"
    primary = machines.primary(standby, "--mirror-timeout=3s", *settings(traffic.random, *LEVELS))
    traffic.add_channel(primary, traffic.orders, "a")

    def disturb(primary: Daemon) -> None:
        nonlocal standby
        for _ in range(3):
            time.sleep(traffic.random.uniform(0.1, 0.6))
            standby.kill()
            time.sleep(traffic.random.uniform(0.0, 0.5))
            standby = machines.standby(address, *settings(traffic.random, *LEVELS), data_path=standby.data_path)
            wait_until(partial(is_in_sync, primary))
        time.sleep(traffic.random.uniform(0.0, 0.5))
        primary.kill()

    traffic.run(primary, 0.1, disturb)
    shutil.rmtree(primary.data_path)
    adopt(standby)
    traffic.drain(standby)
    assert traffic.check() == []
    assert traffic.refusals == []


def test_without_a_standby_messages_are_accepted_or_refused_as_the_flag_says(machines):
    for mode, refuses in (("continue", False), ("refuse", True)):
        standby = machines.standby()
        primary = machines.primary(standby, f"--mirror-lost={mode}", "--mirror-timeout=2s")
        primary.create_channel("t", "c")
        primary.publishes(b"before")
        standby.hang()
        with primary.client() as producer:
            if refuses:
                with pytest.raises(Refused, match="E_PUB_FAILED PUB failed .* is not in sync"):
                    producer.publishes(b"meanwhile")
            else:
                producer.publishes(b"meanwhile")
        refused = (503, b'{"message":"NOT_MIRRORED"}')
        assert primary.http("pub", b"over http", topic="t") == (refused if refuses else (200, b"OK"))
        assert primary.ping() == "OK"
        status, text = primary.http("readyz")
        assert (status, b"not in sync" in text) == ((503, True) if refuses else (200, False))
        standby.go_on()
        wait_until(partial(is_in_sync, primary))
        primary.publishes(b"after")
        assert {b"before", b"after"} <= set(primary.consumes(4 if not refuses else 2))


def test_a_large_batch_is_mirrored_whole_whatever_the_limits_of_the_standby(machines):
    standby = machines.standby("--max-body-size=100000", "--max-msg-size=1000")
    primary = machines.primary(standby, "--max-body-size=50000000", "--max-msg-size=20000000")
    primary.create_channel("t", "c")
    with primary.client() as producer:
        producer.publishes_together([b"m"] * 300_000)
        producer.publishes(bytes(10_000_000))
    assert is_in_sync(primary)
    assert "not mirrored" not in primary.log
    lose(primary)
    adopt(standby)
    assert standby.unfinished("t") == {"c": 300_001}


def test_a_standby_without_disk_space_says_so_and_loses_nothing(machines, start, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    standby = start(
        "--node-id=99", "--mirror-accept", "--mirror-takeover-after=manual",
        data_path=folder, command=f"bash -c 'ulimit -f 300; exec {installed_nsqd()} \"$@\"' nsqd",
    )  # fmt: skip
    primary = machines.primary(standby, "--mirror-timeout=300ms")
    primary.create_channel("t", "c")
    bodies = [b"%d" % number + bytes(1000) for number in range(1000)]
    with primary.client() as producer:
        for begin in range(0, 1000, 50):
            producer.publishes_together(bodies[begin : begin + 50])
    wait_until(partial(is_lost, primary))
    assert "MIRROR failed file too large" in primary.log
    assert primary.consumes(1000) == bodies


def test_an_nsqd_that_accepts_no_primaries_refuses_the_command_as_nsqs_does(machines):
    other = machines.start()
    primary = machines.start(f"--mirror-to={other.tcp_address}", "--mirror-timeout=200ms")
    wait_until(lambda: "E_INVALID invalid command MIRROR" in primary.log)
    primary.create_channel("t", "c")
    primary.publishes(b"m")
    assert primary.consumes(1) == [b"m"]
    with other.client() as client:
        client.says(b"MIRROR hello\n\0\0\0\x02{}")
        with pytest.raises(Refused, match="E_INVALID invalid command MIRROR"):
            client.answer()


HELLO = {"identity": "0" * 32, "epoch": 1, "broadcast_address": "a", "tcp_port": 1, "http_port": 2}


def test_what_no_primary_says_is_refused_and_costs_nobody_else_anything(machines, tmp_path):
    standby = machines.standby()
    hello = json.dumps(HELLO).encode()
    outside = Change(mirror_protocol.WRITE, "../escaped", 0, b"x").encode()
    for commands in (
        [(b"hello", b"[]")],
        [(b"hello", b"nonsense")],
        [(b"hello", b"[" * 50_000)],
        [(b"hello", json.dumps({**HELLO, "identity": "../../../escaped"}).encode())],
        [(b"hello", json.dumps({**HELLO, "tcp_port": "x"}).encode())],
        [(b"hello", json.dumps({**HELLO, "broadcast_address": "a" * 100_000}).encode())],
        [(b"changes", b"")],
        [(b"hello", hello), (b"changes", b"\xff" * 100)],
        [(b"hello", hello), (b"changes", outside)],
        [(b"hello", hello), (b"sums ../../../nsqd.dat", b"{}")],
        [(b"hello", hello), (b"sums nsq_compat/t.topic/log.1", b"{}")],
        [(b"hello", hello), (b"adopt", b"nonsense")],
        [(b"hello", hello), (b"adopt", b"[" * 50_000)],
        [(b"hello", hello), (b"adopt", b'[["t", "1"]]')],
        [(b"hello", hello), (b"adopt", b'[["../../t", 1]]')],
        [(b"hello", hello), (b"dance", b"{}")],
        [(b"\xff\xfe", b"{}")],
    ):
        with standby.client() as client:
            for verb, body in commands:
                client.says(b"MIRROR %b\n" % verb, sized(body))
            for _ in commands[:-1]:
                client.answer()
            with pytest.raises(Refused, match="E_MIRROR_FAILED MIRROR failed|E_BAD_BODY"):
                client.answer()
    assert not list(tmp_path.rglob("escaped*"))
    assert standby.ping() == "OK"
    with standby.client() as client:
        client.says(b"MIRROR\n", sized(b"{}"))
        with pytest.raises(Refused, match="E_INVALID MIRROR insufficient number of parameters"):
            client.answer()


def test_a_damaged_state_of_a_copy_is_logged_and_begun_again(machines):
    standby = machines.standby()
    primary = machines.primary(standby)
    primary.create_channel("t", "c")
    primary.publishes(b"m")
    standby.kill()
    (state,) = standby.data_path.glob("nsq_compat/mirrors/*/mirror.json")
    state.write_bytes(b"{")
    standby = machines.standby(f"--tcp-address={standby.tcp_address}", data_path=standby.data_path)
    assert "mirror.json is damaged" in standby.log
    wait_until(partial(is_in_sync, primary))
    lose(primary)
    adopt(standby)
    assert standby.consumes(1) == [b"m"]


# --- Links ------------------------------------------------------------------------------------------------------------


class Link(threading.Thread):
    """A TCP proxy to an nsqd. What it does to the bytes is set in `forward` and `back`: a delay, or None to stop."""

    def __init__(self, target: str) -> None:
        super().__init__(daemon=True)
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.forward: float | None = 0.0
        self.back: float | None = 0.0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.start()

    def run(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._pairs.append((near, far))
                for source, sink, name in ((near, far, "forward"), (far, near, "back")):
                    threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while (delay := getattr(self, name)) is None:
                    time.sleep(0.01)
                time.sleep(delay)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End all connections at once."""
        pairs, self._pairs = self._pairs, []
        for each in chain.from_iterable(pairs):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self.forward = self.back = 0.0
        self._listener.close()
        self.reset()


@pytest.fixture
def standby(machines: Machines) -> Daemon:
    return machines.standby()


@pytest.fixture
def link(standby: Daemon) -> Iterator[Link]:
    link = Link(standby.tcp_address)
    yield link
    link.close()


def test_a_link_that_fails_in_every_way_loses_no_acknowledged_message(machines, standby, link, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    random = traffic.random
    primary = machines.start(f"--mirror-to={link.address}", "--mirror-timeout=3s")
    wait_until(partial(is_in_sync, primary))
    traffic.add_channel(primary, traffic.orders, "a")

    def disturb(primary: Daemon) -> None:
        for fault in random.sample(["reset", "forward", "back", "both", "slow", "slow and reset"], 6):
            if "slow" in fault:
                link.forward = link.back = 0.2
            if fault in ("forward", "both"):
                link.forward = None
            if fault in ("back", "both"):
                link.back = None
            time.sleep(random.uniform(0.1, 0.6))
            if "reset" in fault:
                link.reset()
            link.forward = link.back = 0.0
            if fault not in ("slow", "slow and reset"):
                link.reset()
            wait_until(partial(is_in_sync, primary))
            time.sleep(random.uniform(0.0, 0.3))
        primary.kill()

    traffic.run(primary, 0.1, disturb)
    shutil.rmtree(primary.data_path)
    adopt(standby)
    traffic.drain(standby)
    assert traffic.check() == []
    assert traffic.refusals == []


@pytest.mark.privileged
def test_a_cable_that_is_cut_loses_no_acknowledged_message(machines, start, cable, seed, tmp_path):
    traffic = Traffic(seed, tmp_path)
    random = traffic.random
    standby = machines.standby(f"--tcp-address={cable.near}:0")
    far = tmp_path / "far"
    far.mkdir()
    primary = start(
        "--node-id=99", f"--mirror-to={standby.tcp_address}", "--mirror-timeout=3s",
        f"--tcp-address={cable.far}:0", f"--http-address={cable.far}:0",
        data_path=far, command=f"{shlex.join(cable.prefix)} {installed_nsqd()}",
    )  # fmt: skip
    wait_until(partial(is_in_sync, primary))
    traffic.add_channel(primary, traffic.orders, "a")

    def disturb(primary: Daemon) -> None:
        for fault in random.sample([cable.is_cut, cable.receives_only, cable.sends_only], 3):
            traffic.checkpoints_until = time.time()  # the standby may be in sync before it has a later one
            with fault():
                time.sleep(random.uniform(0.2, 2.0))
            wait_until(partial(is_in_sync, primary))
            time.sleep(random.uniform(0.0, 0.5))
        primary.kill()

    traffic.run(primary, 0.1, disturb)
    shutil.rmtree(primary.data_path)
    adopt(standby)
    traffic.drain(standby)
    assert traffic.check() == []


def test_an_ok_is_never_sent_before_the_standby_has_the_message(machines, standby, link):
    primary = machines.start(f"--mirror-to={link.address}", "--mirror-lost=refuse", "--mirror-timeout=20s")
    wait_until(partial(is_in_sync, primary))
    primary.create_channel("t", "c")
    link.back = None  # the standby has the message, and its acknowledgement does not arrive
    with primary.client() as producer:
        producer.says(pub(b"m"))
        with Client(primary.tcp_address, b"  V2", timeout=0.5) as other, pytest.raises(TimeoutError):
            other.says(pub(b"n")).answer()
        link.back = 0.0
        producer.hears(b"OK")
    link.forward = None
    with primary.client() as producer:
        producer.says(pub(b"o"))
        with Client(primary.tcp_address, b"  V2", timeout=0.5) as other, pytest.raises(TimeoutError):
            other.says(pub(b"p")).answer()
        link.forward = 0.0
        producer.hears(b"OK")
    lose(primary)
    adopt(standby)
    assert {b"m", b"o"} <= set(standby.consumes(4))


# --- TLS, authorization, compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_the_connection_to_the_standby_is_compressed(machines, compression):
    standby = machines.standby()
    primary = machines.primary(standby, f"--mirror-compression={compression}")
    primary.create_channel("t", "c")
    bodies = [b"%d" % number for number in range(2000)]
    with primary.client() as producer:
        producer.publishes_together(bodies)
    lose(primary)
    adopt(standby)
    assert standby.consumes(2000) == bodies


def test_the_standby_requires_tls_and_authorization_with_a_permission_of_its_own(machines, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    publishers = [{**EVERYTHING[0], "permissions": ["subscribe", "publish"]}]
    mirrors = [{**EVERYTHING[0], "permissions": ["mirror"]}]
    with AuthServer({"publishes": publishers, "mirrors": mirrors}) as auth:
        standby = machines.standby(
            f"--tls-cert={tmp_path}/cert.pem",
            f"--tls-key={tmp_path}/key.pem",
            "--tls-required=tcp-https",
            "--https-address=127.0.0.1:0",
            f"--auth-http-address={auth.address}",
        )
        tls = ["--mirror-tls", f"--tls-root-ca-file={tmp_path}/ca.pem", "--mirror-timeout=200ms"]
        for options, refusal in (
            (["--mirror-timeout=200ms"], "cannot MIRROR in current state (TLS required)"),
            (["--mirror-tls", "--mirror-timeout=200ms"], "tls: failed to verify certificate"),
            (tls, "E_AUTH_FIRST AUTH required before MIRROR"),
            ([*tls, "--mirror-auth-secret=publishes"], "E_UNAUTHORIZED AUTH failed for MIRROR"),
        ):
            refused = machines.start(f"--mirror-to={standby.tcp_address}", *options)
            wait_until(partial(has_logged, refused, refusal))
            refused.end()
        primary = machines.primary(standby, *tls, "--mirror-auth-secret=mirrors")
        primary.create_channel("t", "c")
        primary.publishes(b"m")
        assert "mirrors" not in json.dumps(json.loads(primary.http("info")[1]))
        lose(primary)
        assert adopt(standby) == ["t"]
        assert standby.unfinished("t") == {"c": 1}
