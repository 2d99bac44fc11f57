"""nsq_nodes: layouts of several nsqd on one machine, one of which is started with a real nsqlookupd and clients."""

import os
import shlex
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.client import Consumer, Producer
from nsq_compat.nsqd.options import NsqdOptions, validate
from nsq_conformance.daemon_process import installed, own_host
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.waiting import wait_until

UNIT = Path(__file__).parents[2] / "contrib" / "systemd" / "nsqd@.service"


@pytest.fixture
def nodes(run):
    """Run nsq_nodes and return the options of each node that it prints."""

    def read(*flags):
        done = run("nsq_nodes", *flags)
        assert done.returncode == 0, done.stderr
        commands = [shlex.split(line) for line in done.stdout.decode().splitlines()]
        assert {command[0] for command in commands} == {"nsqd"}
        return [NsqdOptions(**parse(table_of(NsqdOptions), words).given) for _, *words in commands]

    return read


def everything(options):
    """What no two nodes of a machine may share."""
    addresses = (options.tcp_address, options.http_address, options.https_address)
    return [*(address.rpartition(":")[2] for address in addresses), options.data_path, f"id {options.id}"]


def test_every_node_has_ports_a_data_path_and_an_id_of_its_own(nodes):
    found = nodes("--count=100")
    for each in found:
        validate(each)
        announced = (each.broadcast_tcp_port, each.broadcast_http_port)
        assert announced == tuple(int(at.rpartition(":")[2]) for at in (each.tcp_address, each.http_address))
    counts = Counter(each for options in found for each in everything(options))
    assert counts.most_common(1)[0][1] == 1


def test_the_first_node_has_what_a_single_nsqd_has_by_default(nodes):
    (only,), alone = nodes("--count=1"), NsqdOptions()
    assert (only.id, only.tcp_address, only.http_address, only.https_address, only.broadcast_address) == (
        *(alone.id, alone.tcp_address, alone.http_address, alone.https_address, alone.broadcast_address),
    )


def test_by_default_there_is_a_node_for_each_cpu(nodes):
    assert len(nodes()) == len(os.sched_getaffinity(0))


def test_a_layout_is_the_same_each_time_and_can_be_chosen(nodes):
    assert nodes("--count=3") == nodes("--count=3")
    flags = ("--first-port=5000", "--port-step=10", "--first-node-id=700", "--listen-address=::1")
    _, second = nodes("--count=2", "--data-path=/data", "--broadcast-address=web1", *flags)
    assert (second.tcp_address, second.http_address, second.https_address) == ("[::1]:5010", "[::1]:5011", "[::1]:5012")
    assert (second.id, second.data_path, second.broadcast_address) == (701, "/data/2", "web1")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--count=101"], "--count must be [1,100]"),
        (["--count=-1"], "--count must be [1,100]"),
        (["--count=2", "--port-step=2"], "--port-step must be at least 3, because a node has 3 ports"),
        (["--count=2", "--first-port=65500"], "ports must be [1,65535]: see --first-port"),
        (["--count=2", "--first-node-id=1023"], "node ids must be [0,1024): see --first-node-id"),
        (["--count=2", "--data-path=/my data"], "--data-path is empty, or has a character to quote"),
        (["--count=2", "--write=/nowhere"], "/nowhere: no such file or directory"),
        (["2"], "unknown arguments: [2]"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(run, flags, why):
    done = run("nsq_nodes", *flags)
    assert done.returncode == 1
    assert why in done.stderr.decode()


def test_a_node_that_is_added_leaves_the_others_as_they_are(run, tmp_path):
    run("nsq_nodes", "--count=2", f"--write={tmp_path}")
    first = tmp_path / "1.env"
    first.write_text(first.read_text().replace("--node-id=", "--mem-queue-size=5 --node-id="))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    done = run("nsq_nodes", "--count=3", f"--write={tmp_path}")
    assert [line.rpartition("(")[2] for line in done.stdout.decode().splitlines()] == [
        *(f"kept {tmp_path}/{number}.env)" for number in (1, 2)),
        f"wrote {tmp_path}/3.env)",
    ]
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(after) == ["1.env", "2.env", "3.env"]
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--first-port=4050"], "nodes 2 and 3 would have the same port 4250"),
        (["--first-node-id=98"], "nodes 1 and 3 would have the same node id 100"),
    ],
)
def test_an_added_node_that_would_share_something_is_refused(run, tmp_path, flags, why):
    run("nsq_nodes", "--count=2", f"--write={tmp_path}", "--first-node-id=100")
    done = run("nsq_nodes", "--count=3", f"--write={tmp_path}", *flags)
    assert done.returncode == 1
    assert f"{why}; nothing was written" in done.stderr.decode()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_no_layout_is_refused(run, tmp_path):
    (tmp_path / "1.env").write_text("NSQD_OPTIONS=--node-id=1\n")
    done = run("nsq_nodes", "--count=2", f"--write={tmp_path}")
    assert done.returncode == 1
    assert f"{tmp_path}/1.env has no NSQD_NODE_OPTIONS=... with a --node-id" in done.stderr.decode()


def command_of(unit, number, layout, common):
    """The command that systemd starts for an instance of the unit."""
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    variable, _, options = (layout / f"{number}.env").read_text().splitlines()[-1].partition("=")
    values = {"$NSQD_OPTIONS": common, f"${variable}": options.split()}
    program, *words = line.removeprefix("ExecStart=").split()
    assert program == "/usr/local/bin/nsqd"
    return [*shlex.split(installed("nsqd")), *(each for word in words for each in values.get(word, [word]))]


def test_the_nodes_of_a_layout_serve_clients_as_one_cluster_and_one_of_them_is_restarted_alone(run, tmp_path):
    host, topics = own_host(), [f"orders.{number}" for number in range(4)]
    where = (f"--data-path={tmp_path}", f"--listen-address={host}", f"--broadcast-address={host}")
    assert run("nsq_nodes", "--count=2", f"--write={tmp_path}", *where).returncode == 0
    with ExitStack() as stack:
        nsqlookupd = stack.enter_context(NsqlookupdProcess(installed_nsqlookupd()))
        # As in /etc/default/nsqd, with options that those of a node override.
        common = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--tcp-address=0.0.0.0:1", "--node-id=5"]

        def start(number):
            command = command_of(UNIT, number, tmp_path, common)
            nsqd = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(nsqd.wait)
            stack.callback(nsqd.terminate)
            return nsqd

        def listed():
            return {(each["tcp_port"], each["http_port"]) for each in nsqlookupd.get("/nodes")["producers"]}

        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
        start(1)
        second = start(2)
        wait_until(lambda: listed() == {(4150, 4151), (4250, 4251)})
        with Producer([f"{host}:4150", f"{host}:4250"]) as producer:
            for topic in topics:
                for number in range(100):
                    producer.publish(topic, f"{topic} {number}".encode())
        second.kill()
        wait_until(lambda: listed() == {(4150, 4151)})
        start(2)
        wait_until(lambda: len(listed()) == 2)
        received: list[tuple[bytes, bytes]] = []  # body and id
        for topic in topics:
            stack.enter_context(
                Consumer(
                    topic,
                    "archive",
                    lambda message: received.append((message.body, message.id)),
                    lookupd_http_addresses=nsqlookupd.http_address,
                    max_in_flight=50,
                )
            )
        wait_until(lambda: len(received) == 400)
        bodies = [f"{topic} {number}".encode() for topic in topics for number in range(100)]
        assert sorted(body for body, _ in received) == sorted(bodies)
        ids = {(body.partition(b" ")[0], message_id) for body, message_id in received}
        assert len(ids) == 400, "no two messages of a topic have the same id"
