"""F3 on a live process: strace makes the calls that read its files fail, as a disk does that is away for a moment."""

import hashlib
import shlex
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from tests.faults.client import Client
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.test_sync_failure import failing
from tests.faults.waiting import wait_until
from tests.faults.watched_nsqd import watched_nsqd

# --- While it runs ----------------------------------------------------------------------------------------------------

BODIES = [b"%03d" % number + b"x" * 60 for number in range(200)]
MESSAGES = 20_000
SECONDS = 1.5
DESCRIPTORS = 128
"""The limit of nsqd, an eighth of which is for logs: too few for all of its files."""


@pytest.mark.parametrize("call", ["pread64", "openat"])
def test_a_moment_of_read_errors_costs_no_message_and_is_logged_once(start: StartDaemon, tmp_path: Path, call: str):
    daemon = start(
        *("--mem-queue-size=10", "--max-bytes-per-file=20000", "--sync-timeout=200ms"),
        data_path=tmp_path,
        command=f"bash -c 'ulimit -n {DESCRIPTORS}; exec {watched_nsqd()} \"$@\"' nsqd",
    )
    daemon.create_channel("t", "c")
    bodies = [b"%06d" % number + b"x" * 60 for number in range(MESSAGES)]
    with Client(daemon.address()) as producer:
        for first in range(0, MESSAGES, 500):
            producer.publish_together("t", bodies[first : first + 500])
    files = sorted(tmp_path.glob("nsq_compat/t.topic/log.*"))
    seen: list[bytes] = []
    with Client(daemon.address()) as consumer:
        with failing(daemon, call, *files):
            consumer.subscribe("t", "c", 100)
            until = time.monotonic() + SECONDS
            while "cannot read" not in (health := daemon.ping()) or time.monotonic() < until:
                assert time.monotonic() < until + 30, health
                messages = consumer.messages(0.1)
                seen += [message.body for message in messages]
                consumer.finish(message.id for message in messages)
            assert daemon.http("ping")[0] == 500
            assert "nsqd_healthy 0.0" in daemon.http("metrics")[1].decode()
        while len(seen) < MESSAGES:
            messages = consumer.messages(10)
            assert messages, f"{MESSAGES - len(seen)} messages do not come"
            seen += [message.body for message in messages]
            consumer.finish(message.id for message in messages)
    assert seen == bodies
    until = time.monotonic() + 10
    while daemon.ping() != "OK":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
    assert daemon.log.count("ERROR") == 1, daemon.log
    assert daemon.log.count("everything can be read again") == 1


def test_nsqadmin_shows_what_cannot_be_read_while_that_lasts(start: StartDaemon, tmp_path: Path) -> None:
    daemon = start()
    daemon.create_channel("orders", "c")
    with Client(daemon.address()) as producer:
        producer.publish("orders", *BODIES)
    daemon.stop()
    daemon = start("--broadcast-address=127.0.0.1")  # nothing of what waits is in memory
    nsqadmin = NsqadminProcess(installed_nsqadmin(), options=[f"--nsqd-http-address={daemon.http_address}"])
    with ExitStack() as stack:
        # nsqadmin asks for the oldest messages, which are in memory from then on: it starts later.
        with failing(daemon, "pread64"):
            consumer = stack.enter_context(Client(daemon.address()))
            consumer.subscribe("orders", "c", len(BODIES))
            wait_until(lambda: "cannot read" in daemon.ping())
            stack.enter_context(nsqadmin)
            page = nsqadmin.get("/")
            concerns = page[page.index("Needs attention") :].partition("</section>")[0]
            assert "NOK - cannot read" in concerns
            assert f"orders.topic/log.{1:020}: input/output error" in concerns
        assert len(consumer.take(len(BODIES))) == len(BODIES)
        wait_until(lambda: daemon.ping() == "OK")
        wait_until(lambda: "cannot read" not in nsqadmin.get("/"), within=30)


# --- At the start -----------------------------------------------------------------------------------------------------

OPTIONS = ("--mem-queue-size=10", "--max-bytes-per-file=4000", "--sync-timeout=100ms")
LOG = f"nsq_compat/t.topic/log.{2:020}"

READS = [
    ("openat", ""),
    ("getdents64", ""),
    ("openat", "nsqd.dat"),
    ("pread64", "nsqd.dat"),
    ("getdents64", "nsq_compat"),
    ("openat", "nsq_compat/t.topic/checkpoint"),
    ("pread64", "nsq_compat/t.topic/checkpoint"),
    ("getdents64", "nsq_compat/t.topic"),
    ("newfstatat", LOG),
    ("openat", LOG),
    ("pread64", LOG),
]
"""A system call, and the file or folder in the data path for which it fails."""


def failing_nsqd(call: str, path: Path, trace: Path) -> str:
    """The command line of an nsqd for which that call on that path always fails."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("this test needs strace to make system calls fail: apt-get install strace")
    strace_options = ["-f", "-qq", "-o", str(trace), "-P", str(path), "-e", f"inject={call}:error=EIO"]
    return f"{shlex.join([strace, *strace_options])} {watched_nsqd()}"


def contents(data_path: Path) -> dict[str, str]:
    """A checksum of each file."""
    files = [path for path in sorted(data_path.rglob("*")) if path.is_file()]
    return {str(path.relative_to(data_path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[bytes]]:
    """A data path after kill -9, and the bodies that are not finished.

    Some messages were in flight, and the checkpoint is older than the last ones.
    """
    data_path = tmp_path_factory.mktemp("stored")
    with Daemon(data_path, OPTIONS) as daemon:
        daemon.create_channel("t", "c")
        with Client(daemon.address()) as producer, Client(daemon.address()) as consumer:
            producer.publish("t", *BODIES[:150])
            consumer.subscribe("t", "c", 20)
            messages = consumer.take(20)
            consumer.finish(message.id for message in messages[:10])
            wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") == 140)
            producer.publish("t", *BODIES[150:])
            daemon.kill()
    return data_path, set(BODIES) - {message.body for message in messages[:10]}


@pytest.mark.parametrize(("call", "name"), READS)
def test_a_start_that_cannot_read_is_refused_and_the_next_one_delivers_everything(
    start: StartDaemon, stored: tuple[Path, set[bytes]], tmp_path: Path, call: str, name: str
) -> None:
    source, unfinished = stored
    data_path, trace = tmp_path / "data", tmp_path / "trace"
    shutil.copytree(source, data_path)
    before = contents(data_path)

    path = data_path / name
    refused = Daemon(data_path, OPTIONS, failing_nsqd(call, path, trace))
    with pytest.raises(DaemonFailed):
        refused.start()
    assert refused.wait_for_end() == 1
    assert "(INJECTED)" in trace.read_text()
    fatal = refused.log.splitlines()[-1]
    assert "FATAL: " in fatal
    assert str(path) in fatal
    assert "input/output error" in fatal.lower()
    assert contents(data_path) == before

    daemon = start(*OPTIONS, data_path=data_path)
    with Client(daemon.address()) as consumer:
        consumer.subscribe("t", "c", 200)
        messages = consumer.take(len(unfinished))
        assert {message.body for message in messages} == unfinished
        consumer.finish(message.id for message in messages)
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
