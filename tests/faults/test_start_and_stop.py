"""F14: nsqd gets SIGTERM once or twice under load, in some tests followed by SIGKILL, and no message is lost.

F15: starts with much data, with many waiting clients, and on a data path that is in use.
"""

import io
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.traffic import Traffic
from tests.v2_client import dpub, pub

pytestmark = pytest.mark.real_start

BOUND_SECONDS = 15.0
"""A stop under this load takes less than a second; the bound allows for a busy machine."""


def terminate(daemon: Daemon) -> int:
    daemon.send_signal(signal.SIGTERM)
    return daemon.wait_for_end(BOUND_SECONDS)


def terminate_twice(daemon: Daemon) -> int:
    daemon.send_signal(signal.SIGTERM)
    with suppress(ProcessLookupError):
        daemon.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGINT)
    return daemon.wait_for_end(BOUND_SECONDS)


def terminate_then_kill(daemon: Daemon) -> int:
    """Send SIGTERM and soon SIGKILL, as a supervisor with a short timeout does."""
    daemon.send_signal(signal.SIGTERM)
    try:
        return daemon.wait_for_end(1.0)
    except subprocess.TimeoutExpired:
        daemon.kill()
        return 0


@pytest.mark.parametrize("level", ["memory", "os", "fsync"])
def test_a_clean_stop_under_load_loses_and_repeats_nothing(start, seed, tmp_path, level):
    traffic = Traffic(seed, tmp_path)
    for number, stop in enumerate((terminate, terminate_twice)):
        daemon = start(f"--durability={level}", f"--mem-queue-size={traffic.random.choice((0, 20, 10_000))}")
        if number == 0:
            for name in "ab":
                traffic.add_channel(daemon, traffic.orders, name)
        traffic.run(daemon, 0.7, stop, clean=True)
        assert daemon.wait_for_end() == 0
        assert "NSQ: bye" in daemon.log
    traffic.drain(start(f"--durability={level}"))
    assert traffic.check() == []
    assert traffic.settled


@pytest.mark.parametrize("level", ["os", "fsync"])
def test_sigkill_a_second_after_sigterm_loses_nothing(start, seed, tmp_path, level):
    traffic = Traffic(seed, tmp_path)
    daemon = start(f"--durability={level}", "--mem-queue-size=100")
    for name in "ab":
        traffic.add_channel(daemon, traffic.orders, name)
    traffic.run(daemon, 0.7, terminate_then_kill)
    traffic.drain(start(f"--durability={level}"))
    assert traffic.check() == []


@pytest.mark.parametrize(("level", "after"), [("os", 0.0), ("os", 0.05), ("fsync", 0.02)])
def test_sigkill_during_a_stop_loses_nothing(start, seed, tmp_path, level, after):
    traffic = Traffic(seed, tmp_path)
    daemon = start(f"--durability={level}", "--mem-queue-size=100")
    traffic.add_channel(daemon, traffic.orders, "a")

    def stop(daemon: Daemon) -> None:
        daemon.send_signal(signal.SIGTERM)
        time.sleep(after)
        daemon.kill()

    traffic.run(daemon, 0.5, stop)
    traffic.drain(start(f"--durability={level}"))
    assert traffic.check() == []


def test_connections_in_any_state_do_not_delay_a_stop(start):
    daemon = start()
    with ExitStack() as stack:
        openings = (b"", b"  V", b"  V2PUB t\n\0\0\0\5ab", b"GET /stats", b"  V2SUB t c\nRDY 2500\n")
        silent, *_ = [stack.enter_context(daemon.client(opening)) for opening in openings]
        for _ in range(50):
            daemon.http("pub", b"x" * 1_000_000, topic="t")
        began = time.monotonic()
        assert terminate(daemon) == 0
        assert time.monotonic() - began < BOUND_SECONDS / 2
        assert silent.rest() == b""


# --- Starts -----------------------------------------------------------------------------------------------------------


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


def test_a_start_waits_for_the_log_of_the_daemon_that_ended_before(tmp_path, monkeypatch):
    """The end of that daemon is not taken for the end of the new one."""
    released = threading.Event()

    class SlowLog(io.StringIO):
        def write(self, line: str) -> int:
            if line.endswith("bye\n"):
                released.wait()
            return super().write(line)

    with NsqdProcess(installed_nsqd(), tmp_path, log=SlowLog()) as nsqd:
        reader, ended, popen = nsqd._reader, nsqd._process, subprocess.Popen
        ended.terminate()
        ended.wait()

        def start_and_read(*arguments: Any, **settings: Any) -> Any:
            process = popen(*arguments, **settings)
            released.set()
            reader.join()
            return process

        monkeypatch.setattr(subprocess, "Popen", start_and_read)
        threading.Timer(0.2, released.set).start()  # if the start waits
        nsqd.start()
        assert nsqd.asks("GET", "/ping").status == 200
