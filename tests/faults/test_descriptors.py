"""F12: no descriptors are left. Connected clients continue, also with new topics; others are accepted later."""

import time
from contextlib import ExitStack

from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.client import Client
from tests.faults.conftest import StartDaemon

LIMIT = 128
CLIENTS = 200
NEW_TOPICS = 30


def test_the_log_keeps_its_descriptors_while_clients_take_all_others(start: StartDaemon, tmp_path):
    data_path = tmp_path / "data"
    data_path.mkdir()
    script = f'ulimit -n {LIMIT}; exec {installed_nsqd()} "$@"'
    daemon = start("--max-bytes-per-file=20000", data_path=data_path, command=f"bash -c '{script}' nsqd")
    daemon.create_channel("t", "c")
    with ExitStack() as stack, Client(daemon.address()) as producer:
        consumer = stack.enter_context(Client(daemon.address()))
        consumer.subscribe("t", "c", 2500)
        # The kernel completes these connections, and nsqd accepts them when it has descriptors.
        crowd = [stack.enter_context(daemon.connect()) for _ in range(CLIENTS)]
        deadline = time.monotonic() + 10
        while "temporary Accept() failure" not in daemon.log:
            assert time.monotonic() < deadline
            time.sleep(0.05)

        busy_before, began = daemon.cpu_seconds, time.monotonic()
        time.sleep(2.0)
        assert daemon.cpu_seconds - busy_before < 0.2 * (time.monotonic() - began), "it spins"

        bodies = [b"%d " % number + b"x" * 500 for number in range(500)]  # enough for many segments
        producer.publish("t", *bodies)
        messages = consumer.take(500)
        assert {message.body for message in messages} == set(bodies)
        consumer.finish(message.id for message in messages)
        for number in range(NEW_TOPICS):
            producer.publish(f"new{number}", b"first", b"second")

        for client in crowd[:-1]:
            client.close()
        last = crowd[-1]
        last.sendall(b"  V2PUB t\n\0\0\0\1x")
        assert last.recv(100) == b"\0\0\0\6\0\0\0\0OK"
        assert daemon.ping() == "OK"
        assert len(daemon.stats()) == NEW_TOPICS + 1
    daemon.kill()
    daemon = start(data_path=data_path)
    depths = {topic["topic_name"]: topic["depth"] for topic in daemon.stats()}
    assert all(depths[f"new{number}"] == 2 for number in range(NEW_TOPICS))
