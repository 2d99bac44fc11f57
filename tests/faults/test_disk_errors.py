"""F3 and F5 on a live process: strace makes its calls for files fail, as a disk does that is defective, or away for a
moment.
"""

import hashlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.faults.watched_nsqd import watched_nsqd
from tests.v2_client import Refused, dpub, mpub, pub


def strace(*arguments: str) -> list[str]:
    program = shutil.which("strace")
    if program is None:
        pytest.fail("this test needs strace to make system calls fail: apt-get install strace")
    return [program, "-f", *arguments]


@contextmanager
def failing(daemon: Daemon, call: str, *paths: Path) -> Iterator[None]:
    """Make a system call return EIO in all threads, for all files or the given ones."""
    arguments = ("-e", f"trace={call}", "-e", f"inject={call}:error=EIO", "-p", str(daemon.pid))
    command = strace(*arguments, *(word for path in paths for word in ("-P", str(path))))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        assert "attached" in first, first
        try:
            yield
        finally:
            tracer.terminate()
            tracer.communicate(timeout=20)


# --- The data path is gone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["os", "fsync"])
def test_while_the_data_path_is_gone_publishes_are_refused_and_nothing_is_lost(start, tmp_path, level):
    path, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    path.mkdir()
    daemon = start(f"--durability={level}", data_path=path)
    daemon.create_channel("t", "c")
    daemon.publishes(b"before")
    path.rename(elsewhere)
    wait_until(lambda: daemon.ping() == f"NOK - {path}/nsq_compat is gone: no such file or directory")
    assert daemon.logs(f"ERROR: {path}/nsq_compat is gone: no such file or directory")
    for topic in (b"t", b"new"):
        for command in (pub(b"x", topic=topic), mpub([b"x"], topic=topic), dpub(b"x", 50, topic=topic)):
            with daemon.client() as producer, pytest.raises(Refused, match="PUB_FAILED .*no such file or directory"):
                producer.says(command).answer()
        assert daemon.http("pub", b"x", topic=topic.decode())[0] == 503
    elsewhere.rename(path)
    wait_until(lambda: daemon.ping() == "OK")
    daemon.publishes(b"after")
    daemon.publishes(b"first", topic=b"new")
    daemon.kill()
    again = start(data_path=path)
    assert again.consumes(2) == [b"before", b"after"]
    assert again.consumes(1, topic=b"new") == [b"first"]


def test_a_new_topic_is_refused_in_the_moment_in_which_the_data_path_is_gone(start, tmp_path):
    (tmp_path / "data").mkdir()
    daemon = start(data_path=tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert daemon.http("pub", b"x", topic="new")[0] == 503
    assert daemon.http("ping")[0] == 500
    assert daemon.logs("nsq_compat is gone: ")


# --- Syncs ------------------------------------------------------------------------------------------------------------


def test_a_publish_with_a_failed_sync_is_refused_and_its_file_is_not_used_again(start, tmp_path):
    daemon = start("--durability=fsync", "--sync-timeout=100ms")
    daemon.create_channel("t", "c")
    bodies = [b"before %d" % number for number in range(10)]
    daemon.publishes(*bodies)
    segments = set((tmp_path / "nsq_compat" / "t.topic").glob("log.*"))
    with failing(daemon, "fdatasync"):
        for command in (pub(b"x"), mpub([b"y"]), dpub(b"z", 50)):
            with daemon.client() as producer, pytest.raises(Refused, match="failed input/output error"):
                producer.says(command).answer()
        # A checkpoint that needs no fdatasync may succeed between the two, and make nsqd healthy again.
        wait_until(
            lambda: daemon.http("pub", b"w", topic="t")[0] == 503 and daemon.ping() == "NOK - input/output error"
        )
        with daemon.client() as consumer:
            for message in consumer.subscribes(ready=5).takes(5):
                consumer.requeues(message)
    wait_until(lambda: daemon.ping() == "OK")
    daemon.publishes(b"after")
    assert set((tmp_path / "nsq_compat" / "t.topic").glob("log.*")) - segments, "the log continues in a new file"
    daemon.kill()
    daemon = start("--durability=fsync")
    seen = set(daemon.consumes(daemon.unfinished("t")["c"]))
    # A refused message may exist nevertheless, because the disk may have stored it.
    assert {*bodies, b"after"} <= seen <= {*bodies, b"after", b"w", b"x", b"y", b"z"}


def test_level_os_answers_ok_before_the_sync(start):
    daemon = start("--durability=os")
    with failing(daemon, "fdatasync"):
        daemon.publishes(b"x")


# --- Reads while it runs --------------------------------------------------------------------------------------------

BODIES = [b"%03d" % number + b"x" * 60 for number in range(200)]
MESSAGES = 20_000
SECONDS = 1.5
DESCRIPTORS = 128
"""The limit of nsqd, an eighth of which is for logs: too few for all of its files."""


def with_many_files(start: StartDaemon, data_path: Path, *options: str) -> tuple[Daemon, list[bytes]]:
    """An nsqd with a channel that waits for these bodies, in more files than it can have open."""
    daemon = start(
        *("--mem-queue-size=10", "--max-bytes-per-file=20000", *options),
        data_path=data_path,
        command=f"bash -c 'ulimit -n {DESCRIPTORS}; exec {watched_nsqd()} \"$@\"' nsqd",
    )
    daemon.create_channel("t", "c")
    bodies = [b"%06d" % number + b"x" * 60 for number in range(MESSAGES)]
    with daemon.client() as producer:
        for first in range(0, MESSAGES, 500):
            producer.publishes_together(bodies[first : first + 500])
    return daemon, bodies


@pytest.mark.parametrize("call", ["pread64", "openat"])
def test_a_moment_of_read_errors_costs_no_message_and_is_logged_once(start: StartDaemon, tmp_path: Path, call: str):
    daemon, bodies = with_many_files(start, tmp_path, "--sync-timeout=200ms")
    files = sorted(tmp_path.glob("nsq_compat/t.topic/log.*"))
    with daemon.client() as consumer:
        with failing(daemon, call, *files):
            consumer.subscribes(ready=100)
            until = time.monotonic() + SECONDS
            taken = []
            while "cannot read" not in (health := daemon.ping()) or time.monotonic() < until:
                assert time.monotonic() < until + 30, health
                taken += consumer.takes(1, within=0.1, finishing=True)
            assert daemon.http("ping")[0] == 500
            assert "nsqd_healthy 0.0" in daemon.http("metrics")[1].decode()
        taken += consumer.takes(MESSAGES - len(taken), within=60, finishing=True)
    assert [message.body for message in taken] == bodies
    wait_until(lambda: daemon.ping() == "OK")
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
    assert daemon.log.count("ERROR: LOG") == 1, daemon.log  # a client of another test may come to its port
    assert daemon.log.count("everything can be read again") == 1


@pytest.mark.parametrize("call", ["pread64", "openat"])
def test_a_moment_of_read_errors_costs_nothing_of_what_a_rewind_brings_back(start: StartDaemon, tmp_path, call):
    config = tmp_path / "nsqd.toml"
    config.write_text('[[policies]]\ntopic = "t"\nretain_for = "1h"\n')
    daemon, bodies = with_many_files(start, tmp_path, f"--config={config}")
    assert len(daemon.consumes(MESSAGES)) == MESSAGES
    files = sorted(tmp_path.glob("nsq_compat/t.topic/log.*"))
    with daemon.client() as consumer:
        consumer.subscribes(ready=100)
        assert daemon.http("channel/rewind", b"", topic="t", channel="c", to=0)[0] == 200
        taken = consumer.takes(50, within=20, finishing=True)
        with failing(daemon, call, *files):
            until = time.monotonic() + SECONDS
            while "cannot read" not in (health := daemon.ping()) or time.monotonic() < until:
                assert time.monotonic() < until + 30, health
                taken += consumer.takes(1, within=0.1, finishing=True)
            # A rewind that cannot read is refused, and moves nothing.
            assert daemon.http("channel/rewind", b"", topic="t", channel="c", to=MESSAGES // 2)[0] == 500
        taken += consumer.takes(MESSAGES - len(taken), within=60, finishing=True)
    assert [message.body for message in taken] == bodies
    wait_until(lambda: daemon.ping() == "OK" and daemon.unfinished("t") == {"c": 0})
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
    assert "no messages from offset" not in daemon.log


def test_nsqadmin_shows_what_cannot_be_read_while_that_lasts(start: StartDaemon, tmp_path: Path) -> None:
    daemon = start()
    daemon.create_channel("orders", "c")
    daemon.publishes(*BODIES, topic=b"orders")
    daemon.stop()
    daemon = start("--broadcast-address=127.0.0.1")  # nothing of what waits is in memory
    nsqadmin = NsqadminProcess(installed_nsqadmin(), options=[f"--nsqd-http-address={daemon.http_address}"])
    with ExitStack() as stack:
        # nsqadmin asks for the oldest messages, which are in memory from then on: it starts later.
        with failing(daemon, "pread64"):
            consumer = stack.enter_context(daemon.client())
            consumer.subscribes(b"orders", ready=len(BODIES))
            wait_until(lambda: "cannot read" in daemon.ping())
            stack.enter_context(nsqadmin)
            page = nsqadmin.get("/")
            concerns = page[page.index("Needs attention") :].partition("</section>")[0]
            assert "NOK - cannot read" in concerns
            assert f"orders.topic/log.{1:020}: input/output error" in concerns
        assert len(consumer.takes(len(BODIES))) == len(BODIES)
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
    ("newfstatat", "nsq_compat"),
]
"""A system call, and the file or folder in the data path for which it fails."""


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
        daemon.publishes(*BODIES[:150])
        with daemon.client() as consumer:
            messages = consumer.subscribes(ready=20).takes(20)
            wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") == 150)
            consumer.finishes(messages[:10])
            wait_until(lambda: daemon.checkpoint_says_unfinished("t", "c") == 140)
            daemon.publishes(*BODIES[150:])
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
    failing_always = strace("-qq", "-o", str(trace), "-P", str(path), "-e", f"inject={call}:error=EIO")
    refused = Daemon(data_path, OPTIONS, f"{shlex.join(failing_always)} {watched_nsqd()}")
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
    assert set(daemon.consumes(len(unfinished))) == unfinished
    assert daemon.stats("t")[0].get("damaged_records", 0) == 0
