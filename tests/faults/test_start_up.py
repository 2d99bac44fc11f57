"""F15: starts with much data, with many waiting clients, and on a data path that is in use."""

import subprocess
import time
from contextlib import ExitStack

import pytest

from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.v2_client import dpub, pub


@pytest.mark.parametrize("ending", ["kill", "stop"])
@pytest.mark.parametrize(
    ("topics", "deferred"),
    [
        pytest.param(300, 5_000, id="small"),
        pytest.param(10_000, 50_000, id="full", marks=[pytest.mark.long, pytest.mark.timeout(0)]),
    ],
)
def test_a_start_with_much_data_on_disk_is_fast(start: StartDaemon, topics, deferred, ending):
    daemon = start("--durability=os")
    daemon.create_channel("t", "c")
    with daemon.client(timeout=120) as producer:
        producer.pipelines([pub(b"first", topic=b"topic%d" % number) for number in range(topics)] * 2)
        producer.pipelines([dpub(b"x" * 200, 3_600_000)] * deferred)
    getattr(daemon, ending)()
    began = time.monotonic()
    daemon = start("--durability=os")
    seconds = time.monotonic() - began
    print(f"{topics} topics and {deferred} deferred messages, after {ending}: started in {seconds:.1f} s")
    assert daemon.unfinished("t") == {"c": deferred}
    assert sum(topic["depth"] for topic in daemon.stats()) == 2 * topics
    assert seconds < 30, "the target is 10 s on an idle machine"


def test_five_hundred_clients_connect_at_once(start: StartDaemon):
    daemon = start()
    daemon.create_channel("t", "c")
    with ExitStack() as stack:
        began = time.monotonic()
        for client in [stack.enter_context(daemon.client(b"  V2" + pub(b"x"))) for _ in range(500)]:
            client.hears(b"OK")
        print(f"500 clients served within {time.monotonic() - began:.1f} s")
    assert daemon.unfinished("t") == {"c": 500}


def test_a_data_path_in_use_is_refused(start: StartDaemon, tmp_path):
    daemon = start()
    second = subprocess.run(
        [installed_nsqd(), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].endswith(
        f"FATAL: failed to instantiate nsqd - failed to lock data-path: cannot flock directory {tmp_path} - "
        "resource temporarily unavailable (possibly in use by another instance of nsqd)"
    )
    daemon.publishes(b"x")
    # A killed process leaves no lock.
    daemon.kill()
    assert start().unfinished("t") == {}
