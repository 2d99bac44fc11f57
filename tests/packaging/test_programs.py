"""Every program of the wheel works in an environment with nothing else."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from nsq_conformance.http_consumer_process import HttpConsumerProcess
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from tests.client.waiting import wait_until
from tests.packaging.release import Release, console_scripts, run

pytestmark = pytest.mark.timeout(900)

TOPIC, CHANNEL = "numbers", "archive"


class Installed:
    """The wheel's programs, and a small cluster of them with five messages."""

    def __init__(self, programs: Path, folder: Path, ending: ExitStack) -> None:
        self.programs, self.folder, self._ending = programs, folder, ending
        self.nsqlookupd = ending.enter_context(NsqlookupdProcess(self.program("nsqlookupd")))
        announced = [f"--lookupd-tcp-address={self.nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
        (folder / "data").mkdir()
        self.nsqd = ending.enter_context(NsqdProcess(self.program("nsqd"), folder / "data", options=announced))
        self.nsqd.create_channel(TOPIC, CHANNEL)
        self.to = (f"--nsqd-tcp-address={self.nsqd.tcp_address}", f"--topic={TOPIC}")
        self.from_channel = (*self.to, f"--channel={CHANNEL}")
        self.publish()
        # A new topic holds its messages until nsqlookupd has been asked for its channels.
        wait_until(lambda: self.nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 5)

    def program(self, name: str) -> str:
        return str(self.programs / name)

    def publish(self) -> None:
        assert self.nsqd.asks("POST", f"/mpub?topic={TOPIC}", b"1\n2\n3\n4\n5").status == 200

    def starts(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Start a program that runs until the end of the test."""
        process = subprocess.Popen([self.program(name), *options], text=True, stderr=subprocess.DEVNULL)
        self._ending.callback(process.wait)
        self._ending.callback(process.terminate)
        return process

    def opens(self, name: str, *options: str) -> HttpConsumerProcess:
        return self._ending.enter_context(HttpConsumerProcess(self.program(name), options=options))

    def depth(self, topic: str = TOPIC) -> int:
        stats = self.nsqd.topic_stats(topic)
        return -1 if stats is None else int(stats["depth"]) + sum(each["depth"] for each in stats["channels"])


@pytest.fixture
def installed(release: Release, tmp_path: Path) -> Iterator[Installed]:
    with ExitStack() as ending:
        yield Installed(release.installed("all"), tmp_path, ending)


def nsqd(it: Installed) -> None:
    assert it.nsqd.asks("GET", "/readyz").body == b"OK"
    assert b"nsqd_topic_messages_total" in it.nsqd.asks("GET", "/metrics").body


def nsqlookupd(it: Installed) -> None:
    wait_until(lambda: TOPIC in it.nsqlookupd.asks("GET", "/topics").json()["topics"])


def nsqadmin(it: Installed) -> None:
    shows = [f"--nsqd-http-address={it.nsqd.http_address}"]
    with NsqadminProcess(it.program("nsqadmin"), options=shows) as admin:
        assert TOPIC in admin.get("/")
        assert "{" in admin.get("/static/nsqadmin.css")


def to_nsq(it: Installed) -> None:
    subprocess.run([it.program("to_nsq"), *it.to], input="6\n7", text=True, check=True, timeout=60)
    assert it.depth() == 7


def nsq_tail(it: Installed) -> None:
    assert run(it.program("nsq_tail"), *it.from_channel, "--n=5", cwd=it.folder).split() == [*"12345"]


def nsq_stat(it: Installed) -> None:
    shows = (f"--topic={TOPIC}", f"--channel={CHANNEL}", f"--nsqd-http-address={it.nsqd.http_address}")
    table = run(it.program("nsq_stat"), *shows, "--count=1", "--interval=100ms", cwd=it.folder)
    assert "5" in table.splitlines()[-1].split()


def nsq_to_file(it: Installed) -> None:
    it.starts("nsq_to_file", *it.from_channel, f"--output-dir={it.folder}/archive", "--sync-interval=1s")
    wait_until(lambda: "".join(path.read_text() for path in it.folder.glob("archive/*")) == "1\n2\n3\n4\n5\n")


def nsq_to_http(it: Installed) -> None:
    it.starts("nsq_to_http", *it.from_channel, f"--post=http://{it.nsqd.http_address}/pub?topic=copied")
    wait_until(lambda: it.depth("copied") == 5)


def nsq_to_nsq(it: Installed) -> None:
    to = (f"--destination-nsqd-tcp-address={it.nsqd.tcp_address}", "--destination-topic=copied")
    it.starts("nsq_to_nsq", *it.from_channel, *to)
    wait_until(lambda: it.depth("copied") == 5)


def nsq_pubsub(it: Installed) -> None:
    program = it.opens("nsq_pubsub", it.to[0])
    with urlopen(f"http://{program.http_address}/sub?topic={TOPIC}&channel={CHANNEL}", timeout=30) as stream:
        assert [stream.readline().strip() for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]


def nsq_pull(it: Installed) -> None:
    program = it.opens("nsq_pull", *it.from_channel)
    assert program.ask("/get?wait=20") == (200, b"1")


def nsq_redrive(it: Installed) -> None:
    of = ("--topic=elsewhere", "--channel=c", f"--dead-letter-topic={TOPIC}", f"--dead-letter-channel={CHANNEL}")
    run(it.program("nsq_redrive"), *of, f"--nsqd-http-address={it.nsqd.http_address}", cwd=it.folder)
    assert (it.depth("elsewhere"), it.depth()) == (5, 0)


def nsq_rewind(it: Installed) -> None:
    it.nsqd.asks("POST", f"/channel/empty?topic={TOPIC}&channel={CHANNEL}")
    of = (f"--topic={TOPIC}", f"--channel={CHANNEL}", f"--nsqd-http-address={it.nsqd.http_address}")
    run(it.program("nsq_rewind"), *of, "--to=oldest", "--execute", cwd=it.folder)
    assert it.depth() == 5


def nsq_replay(it: Installed) -> None:
    of = (f"--topic={TOPIC}", f"--nsqd-http-address={it.nsqd.http_address}")
    assert run(it.program("nsq_replay"), *of, "--from=3", cwd=it.folder).split() == ["4", "5"]


def nsq_access(it: Installed) -> None:
    of = (f"--access-file={it.folder / 'access.toml'}",)
    run(it.program("nsq_access"), "new", *of, "--name=worker", "--permission=consume", cwd=it.folder)
    assert run(it.program("nsq_access"), "list", *of, cwd=it.folder) == "worker: consume\n"


def nsq_nodes(it: Installed) -> None:
    nodes = run(it.program("nsq_nodes"), "--count=3", cwd=it.folder).splitlines()
    for port, node in zip((4150, 4250, 4350), nodes, strict=True):
        assert f"--tcp-address=0.0.0.0:{port}" in node


def nsq_data(it: Installed) -> None:
    it.nsqd.stop()
    options = ("check", f"--data-path={it.folder / 'data'}")
    assert TOPIC in run(it.program("nsq_data"), *options, cwd=it.folder)


USES: tuple[Callable[[Installed], None], ...] = (
    nsqd, nsqlookupd, nsqadmin, to_nsq, nsq_tail, nsq_stat, nsq_to_file, nsq_to_http, nsq_to_nsq, nsq_pubsub, nsq_pull,
    nsq_redrive, nsq_rewind, nsq_replay, nsq_access, nsq_nodes, nsq_data,
)  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_program_works(installed, use):
    use(installed)


def test_every_program_has_a_test():
    assert {use.__name__ for use in USES} == set(console_scripts())


_STOPPED_AT_ONCE = """
import importlib, os, signal, sys

package = f"nsq_compat.{sys.argv.pop(1)}"
main = importlib.import_module(f"{package}.main")
# nsqadmin imports its daemon only when its dependencies are there.
owner = main if hasattr(main, "Daemon") else importlib.import_module(f"{package}.daemon")

class Watched(owner.Daemon):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

owner.Daemon = Watched
main.main()
"""


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_a_daemon_stopped_as_soon_as_it_listens_stops_cleanly(program: str, tmp_path: Path):
    options = {
        "nsqd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"],
        "nsqlookupd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
        "nsqadmin": ["--http-address=127.0.0.1:0", "--nsqd-http-address=127.0.0.1:1"],
    }
    command = [sys.executable, "-c", _STOPPED_AT_ONCE, program, *options[program]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stderr
