"""F9: a client loses its network; after two heartbeats nsqd disconnects it, and its messages are redelivered."""

from collections.abc import Iterator

import pytest

from tests.faults.client import Client
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.network import Cable
from tests.faults.waiting import wait_until

pytestmark = pytest.mark.privileged

CONSUMER = """
from tests.faults.client import Client
client = Client({address!r}, heartbeat_interval={heartbeat_ms}, msg_timeout=2000)
client.subscribe("t", "c", 3)
print("ready", flush=True)
while True:
    for message in client.messages(60):
        print(message.body.decode(), flush=True)
"""
PRODUCER = """
from tests.faults.client import Client, sized
client = Client({address!r}, heartbeat_interval=1000)
client.publish("t", b"whole")
client.send(b"PUB t\\n" + sized(b"half a body")[:-4])
print("ready", flush=True)
client.socket.recv(1)  # no data will arrive
"""


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


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
    program = CONSUMER.format(address=daemon.address(), heartbeat_ms=1000)
    with cable.run(program) as far, Client(daemon.address()) as producer:
        assert far.stdout is not None
        assert far.stdout.readline() == "ready\n"
        producer.publish("t", *bodies)
        held = {far.stdout.readline().strip().encode() for _ in range(3)}
        cable.cut()
        wait_until(lambda: client_count(daemon) == 0)
        with Client(daemon.address()) as successor:
            successor.subscribe("t", "c", 100)
            taken = successor.take(len(bodies))
        assert sorted(message.body for message in taken) == sorted(bodies)
        assert {message.body for message in taken if message.attempts == 2} == held
        assert far.poll() is None, "the other end is not notified"


def test_a_network_cut_shorter_than_two_heartbeats_has_no_effect(daemon: Daemon, cable: Cable):
    # Half a minute, so that the cut is shorter than two heartbeats even on a busy machine.
    program = CONSUMER.format(address=daemon.address(), heartbeat_ms=30_000)
    with cable.run(program) as far, Client(daemon.address()) as producer:
        assert far.stdout is not None
        assert far.stdout.readline() == "ready\n"
        cable.cut()
        producer.publish("t", b"while it was cut")
        cable.mend()
        assert far.stdout.readline() == "while it was cut\n"
        assert client_count(daemon) == 1


def test_an_incomplete_publish_has_no_effect(daemon: Daemon, cable: Cable):
    with cable.run(PRODUCER.format(address=daemon.address())) as far, Client(daemon.address()) as consumer:
        assert far.stdout is not None
        assert far.stdout.readline() == "ready\n"
        cable.cut()
        wait_until(lambda: "PUB failed to read message body" in daemon.log)
        consumer.subscribe("t", "c", 10)
        assert [message.body for message in consumer.take(1)] == [b"whole"]
        assert daemon.unfinished("t") == {"c": 1}
