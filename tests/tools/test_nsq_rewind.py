"""nsq_rewind with real nsqd: it tells what it would do, and does that."""

from contextlib import ExitStack

import pytest

from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd
from tests.v2_client import Client


@pytest.fixture
def rewind(run, nsqd, topic):
    """Run it to its end, on channel `c`."""

    def run_it(*flags, at=(nsqd,)):
        addresses = [f"--nsqd-http-address={each.http_address}" for each in at]
        return run("nsq_rewind", f"--topic={topic}", "--channel=c", *addresses, *flags)

    return run_it


@pytest.fixture
def consumed(nsqd, topic):
    """The topic has ten messages, which channel `c` has finished."""
    nsqd.publish(topic, *[b"%d" % number for number in range(10)])
    assert nsqd.asks("POST", f"/channel/empty?topic={topic}&channel=c").status == 200
    return topic


def test_by_default_it_tells_what_it_would_do(nsqd, consumed, rewind):
    done = rewind("--to=4")
    assert done.returncode == 0, done.stderr
    moved = f"channel c of {consumed} would go from 10 to 4: 6 messages would come, instead of 0"
    assert done.stdout.decode() == f"{nsqd.http_address}: {moved}\n"
    assert b"nothing was changed; --execute does it" in done.stderr
    assert nsqd.waiting(consumed) == 0


@pytest.mark.parametrize(("when", "count"), [("4", 6), ("oldest", 10), ("1h", 10), ("latest", 0)])
def test_a_channel_is_moved(nsqd, consumed, rewind, when, count):
    done = rewind(f"--to={when}", "--execute")
    assert done.returncode == 0, done.stderr
    moved = f"channel c of {consumed} went from 10 to {10 - count}: {count} messages will come, instead of 0"
    assert done.stdout.decode() == f"{nsqd.http_address}: {moved}\n"
    assert nsqd.waiting(consumed) == count


def test_what_is_in_flight_may_be_dropped(nsqd, topic, rewind):
    nsqd.publish(topic, b"1", b"2", b"3")
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribes(topic.encode(), ready=1).takes(1)
        assert b"3 messages would come, instead of 2" in rewind("--to=oldest").stdout
        assert b"3 messages will come" in rewind("--to=oldest", "--drop-pending", "--execute").stdout
        assert nsqd.stat(topic, "depth") + nsqd.stat(topic, "in_flight_count") == 3


def test_a_channel_is_created_where_it_is_missing_if_that_is_wanted(nsqd, consumed, rewind):
    refused = rewind("--to=7", "--channel=new", "--execute")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert f"no channel new of {consumed} on nsqd {nsqd.http_address} (--create creates it)".encode() in refused.stderr
    planned = rewind("--to=7", "--channel=new", "--create")
    assert b"channel new of " in planned.stdout
    assert b" would be created at 7: 3 messages would come" in planned.stdout
    assert len(nsqd.topic_stats(consumed)["channels"]) == 1
    done = rewind("--to=7", "--channel=new", "--create", "--execute")
    assert b" was created at 7: 3 messages will come" in done.stdout
    assert nsqd.waiting(consumed, "new") == 3


@pytest.fixture
def two(tmp_path, topic):
    """Two further nsqd, with five and seven messages of the topic."""
    with ExitStack() as running:
        nodes = []
        for number, count in enumerate((5, 7)):
            (tmp_path / str(number)).mkdir()
            nodes.append(running.enter_context(Nsqd(installed_nsqd(), tmp_path / str(number))))
            nodes[-1].create_channel(topic, "c")
            nodes[-1].publish(topic, *[b"x"] * count)
            nodes[-1].asks("POST", f"/channel/empty?topic={topic}&channel=c")
        yield nodes


def test_all_nsqd_are_moved_or_none(topic, rewind, two):
    planned = rewind("--to=1h", at=two)
    assert planned.stdout.splitlines()[-1] == b"all: 12 messages"
    refused = rewind("--to=3", "--execute", at=two)
    assert b"an offset is a place on one nsqd; use a time, or name one nsqd" in refused.stderr
    two[1].asks("POST", f"/channel/delete?topic={topic}&channel=c")
    assert rewind("--to=1h", "--execute", at=two).returncode == 1
    assert two[0].waiting(topic) == 0
    done = rewind("--to=1h", "--create", "--execute", at=two)
    assert done.returncode == 0, done.stderr
    assert [node.waiting(topic) for node in two] == [5, 7]


def test_an_nsqd_that_does_not_answer_leaves_all_as_they_are(rewind, topic, two):
    two[1].kill()
    done = rewind("--to=oldest", "--execute", at=two)
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"nsqd {two[1].http_address}: connection refused".encode() in done.stderr
    assert two[0].waiting(topic) == 0


def test_nsqd_are_found_by_nsqlookupd(run, lookupd, announced_nsqd):
    announced_nsqd.create_channel("t", "c")
    announced_nsqd.publish("t", b"1", b"2")
    wait_until(lambda: announced_nsqd.waiting("t") == 2)  # the topic asks nsqlookupd for its channels first
    announced_nsqd.asks("POST", "/channel/empty?topic=t&channel=c")
    wait_until(lambda: lookupd.asks("GET", "/lookup?topic=t").status == 200)
    flags = ("--topic=t", "--channel=c", "--to=oldest", "--execute", f"--lookupd-http-address={lookupd.http_address}")
    done = run("nsq_rewind", *flags)
    assert done.returncode == 0, done.stderr
    assert announced_nsqd.waiting("t") == 2


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--to=yesterday"], "INVALID_ARG_AT: oldest, latest, an offset, a time such as"),
        (["--to=11"], "INVALID_ARG_AT: the next offset is 10"),
        (["--to=0", "--topic=unknown"], "no nsqd has the topic unknown"),
        (["--to=0", "--channel=tmp#ephemeral"], "INVALID_ARG_CHANNEL: an ephemeral channel cannot be moved"),
    ],
)
def test_what_nsqd_refuses_is_an_error(nsqd, consumed, rewind, flags, text):
    nsqd.create_channel(consumed, "tmp#ephemeral")
    done = rewind(*flags, "--execute")
    assert (done.returncode, done.stdout) == (1, b"")
    assert text in done.stderr.decode()


def test_an_nsqd_of_go_is_named(run, serve_go):
    done = run("nsq_rewind", "--topic=t", "--channel=c", "--to=oldest", f"--nsqd-http-address={serve_go}")
    assert done.returncode == 1
    assert b"it is Go's nsqd, which does not offer offsets" in done.stderr
