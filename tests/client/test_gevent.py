"""The client under gevent's monkey-patching, in its own process."""

import json
import subprocess
import sys
import time
from pathlib import Path

from nsq_compat.protocol.frames import HEARTBEAT
from tests.client.waiting import wait_until

PROGRAM = Path(__file__).with_name("gevent_program.py")
PATIENT_PROGRAM = """
from gevent import monkey

monkey.patch_all()

import os
import sys
import time

from nsq_compat.client import Consumer

consumer = Consumer("t", "c", lambda message: True, nsqd_tcp_addresses=sys.argv[1])
consumer.start()
consumer.wait_until_subscribed(20)
for _ in range(1000):
    time.sleep(0.001)
os._exit(0)
"""
"""It ends when another greenlet than the consumer's has had a thousand turns."""


def test_a_patched_program_gets_greenlets_instead_of_threads(nsqd, topic):
    nsqd.create_channel(topic, "c")
    command = [sys.executable, str(PROGRAM), nsqd.tcp_address, nsqd.http_address, topic]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["seen"] == 41
    assert 1 < report["most at once"] <= 10
    assert report["turns"] > 5
    assert report["logged"] == 42
    assert report["nodes"] == [nsqd.tcp_address]


def test_an_nsqd_that_sends_without_end_does_not_stop_other_greenlets(fake):
    with subprocess.Popen([sys.executable, "-c", PATIENT_PROGRAM, fake.address], stdout=subprocess.PIPE) as run:
        try:
            wait_until(lambda: fake.said("RDY"))
            heartbeats = HEARTBEAT * 10_000
            give_up = time.monotonic() + 50
            while run.poll() is None and time.monotonic() < give_up:
                fake.peer.send(heartbeats)
            assert run.poll() == 0
        finally:
            run.kill()


def test_the_client_itself_never_imports_gevent():
    check = "import sys, nsq_compat.client, nsq_compat.client.memcached; sys.exit('gevent' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
