"""The client under gevent's monkey-patching, in its own process."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("gevent_program.py")


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


def test_the_client_itself_never_imports_gevent():
    check = "import sys, nsq_compat.client, nsq_compat.client.memcached; sys.exit('gevent' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
