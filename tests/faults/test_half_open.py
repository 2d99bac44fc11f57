"""F9: a client loses its network; nsqd disconnects it after two heartbeats, and nsq_pubsub and nsq_pull when the client
does not acknowledge. Its messages are redelivered.
"""

import pytest

from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.faults.network import Cable

pytestmark = pytest.mark.privileged

CONSUMER = """
from tests.v2_client import Client
client = Client({address!r}, heartbeat_interval={heartbeat_ms}, msg_timeout=2000).subscribes(ready=3)
print("ready", flush=True)
while True:
    for message in client.messages(60):
        print(message.body.decode(), flush=True)
"""
PRODUCER = """
from tests.v2_client import Client, pub
client = Client({address!r}, heartbeat_interval=1000).publishes(b"whole")
client.says(pub(b"half a body")[:-4])
print("ready", flush=True)
client.rest()  # no data will arrive
"""
HTTP_CLIENT = """
import socket
caller = socket.create_connection({address!r})
caller.sendall(b"GET {target} HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n")
print("asked", flush=True)
lines = caller.makefile("r")
while True:
    print(lines.readline().strip(), flush=True)
"""


@pytest.fixture
def daemon(start: StartDaemon, cable: Cable) -> Daemon:
    daemon = start(f"--tcp-address={cable.near}:0")
    daemon.create_channel("t", "c")
    return daemon


def client_count(daemon: Daemon) -> int:
    (channel,) = daemon.channels("t")
    return int(channel["client_count"])


def test_a_client_without_network_is_disconnected_and_its_messages_are_requeued(daemon: Daemon, cable: Cable):
    bodies = [b"%d" % number for number in range(20)]
    with cable.run_python(CONSUMER.format(address=daemon.tcp_address, heartbeat_ms=1000)) as far:
        assert far.readline() == "ready\n"
        daemon.publishes(*bodies)
        held = {far.readline().strip().encode() for _ in range(3)}
        cable.cut()
        wait_until(lambda: client_count(daemon) == 0)
        with daemon.client() as successor:
            taken = successor.subscribes(ready=100).takes(len(bodies))
        assert sorted(message.body for message in taken) == sorted(bodies)
        assert {message.body for message in taken if message.attempts == 2} == held


def test_a_network_cut_shorter_than_two_heartbeats_has_no_effect(daemon: Daemon, cable: Cable):
    # Half a minute, so that the cut is shorter than two heartbeats even on a busy machine.
    with cable.run_python(CONSUMER.format(address=daemon.tcp_address, heartbeat_ms=30_000)) as far:
        assert far.readline() == "ready\n"
        cable.cut()
        daemon.publishes(b"while it was cut")
        cable.mend()
        assert far.readline() == "while it was cut\n"
        assert client_count(daemon) == 1


def test_an_incomplete_publish_has_no_effect(daemon: Daemon, cable: Cable):
    with cable.run_python(PRODUCER.format(address=daemon.tcp_address)) as far, daemon.client() as consumer:
        assert far.readline() == "ready\n"
        cable.cut()
        wait_until(lambda: "PUB failed to read message body" in daemon.log)
        assert [message.body for message in consumer.subscribes(ready=10).takes(1)] == [b"whole"]
        assert daemon.unfinished("t") == {"c": 1}


@pytest.mark.parametrize(
    ("program", "target", "flags"),
    [
        ("nsq_pubsub", "/sub?topic=t&channel=c", []),
        ("nsq_pull", "/get?wait=60", ["--topic=t", "--channel=c"]),
    ],
)
def test_messages_that_have_not_reached_an_http_client_are_requeued(daemon, cable, program, target, flags):
    options = [f"--nsqd-tcp-address={daemon.tcp_address}", f"--http-address={cable.near}:0", "--client-timeout=1s"]
    with HttpConsumerProcess(installed(program), options=[*options, *flags]) as consumer:
        near, _, port = consumer.http_address.rpartition(":")
        with cable.run_python(HTTP_CLIENT.format(address=(near, int(port)), target=target)) as far:
            assert far.readline() == "asked\n"
            # The request has arrived.
            wait_until(lambda: any(each["ready_count"] for each in daemon.channel_stats("t", "c")["clients"]))
            cable.cut()
            daemon.publishes(b"lost in the network")
            wait_until(lambda: daemon.channel_stats("t", "c")["requeue_count"] == 1)
            stats = daemon.channel_stats("t", "c")
    assert (stats["depth"], stats["timeout_count"]) == (1, 0)
