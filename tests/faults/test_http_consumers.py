"""A client of nsq_pubsub or nsq_pull that loses its network: unacknowledged messages are requeued."""

from collections.abc import Iterator

import pytest

from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from tests.faults.conftest import StartDaemon
from tests.faults.network import Cable
from tests.faults.waiting import wait_until

pytestmark = pytest.mark.privileged

CALLER = """
import socket
caller = socket.create_connection({address!r})
caller.sendall(b"GET {target} HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n")
print("asked", flush=True)
lines = caller.makefile("r")
while True:
    print(lines.readline().strip(), flush=True)
"""


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


@pytest.mark.parametrize(
    ("program", "target", "flags"),
    [
        ("nsq_pubsub", "/sub?topic=t&channel=c", []),
        ("nsq_pull", "/get?wait=60", ["--topic=t", "--channel=c"]),
    ],
)
def test_messages_that_have_not_arrived_are_requeued(
    start: StartDaemon, cable: Cable, program: str, target: str, flags: list[str]
):
    nsqd = start()
    nsqd.create_channel("t", "c")
    host, port = nsqd.address()
    options = [f"--nsqd-tcp-address={host}:{port}", f"--http-address={cable.near}:0", "--client-timeout=1s", *flags]
    with HttpConsumerProcess(installed(program), options=options) as consumer:
        near, _, near_port = consumer.http_address.rpartition(":")
        with cable.run(CALLER.format(address=(near, int(near_port)), target=target)) as far:
            assert far.stdout is not None
            assert far.stdout.readline() == "asked\n"
            # The request has arrived.
            wait_until(lambda: any(each["ready_count"] for each in nsqd.channel_stats("t", "c")["clients"]))
            cable.cut()
            nsqd.http("pub", b"lost in the network", topic="t")
            wait_until(lambda: nsqd.channel_stats("t", "c")["requeue_count"] == 1)
            stats = nsqd.channel_stats("t", "c")
    assert (stats["depth"], stats["timeout_count"]) == (1, 0)
