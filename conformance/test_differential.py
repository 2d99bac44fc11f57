"""Tests of the differential fuzzer: it finds every difference that is made, and no others."""

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Thread

import pytest

from nsq_conformance.differential.acts import Act, Send, ShutDown, Take
from nsq_conformance.differential.campaign import Campaign
from nsq_conformance.differential.comparing import Comparison
from nsq_conformance.differential.playing import topic_names
from nsq_conformance.differential.streams import stream
from nsq_conformance.differential.vocabulary import OPTIONS
from nsq_conformance.nsqd_process import NsqdProcess

ROOT = Path(__file__).parent.parent
STREAMS = 150

Change = Callable[[bytes], bytes]
Addresses = tuple[str, str]
"""TCP and HTTP address."""


@pytest.fixture(scope="module")
def nsqd_process(nsqd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("differential"), options=OPTIONS) as process:
        yield process


@pytest.fixture(scope="module")
def names() -> Iterator[bytes]:
    return topic_names()


@pytest.fixture
def changed(nsqd_process: NsqdProcess) -> Iterator[Callable[[Change], Addresses]]:
    """The same nsqd behind a proxy that changes its answers."""
    with ExitStack() as proxies:

        def start(change: Change) -> Addresses:
            proxy = Proxy(nsqd_process.tcp_address, change)
            proxies.enter_context(closing(proxy))
            return proxy.address, nsqd_process.http_address

        yield start


class Proxy:
    """Forwards clients' data unchanged, and nsqd's data changed by `change`."""

    def __init__(self, target: str, change: Change) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._accepting = Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            upward = Thread(target=_pass_on, args=(client, server, bytes), daemon=True)
            upward.start()
            _pass_on(server, client, self._change)
            upward.join()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()


def _pass_on(source: socket.socket, target: socket.socket, change: Change) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(change(data))
    for each, direction in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
        with suppress(OSError):
            each.shutdown(direction)


def test_an_nsqd_does_not_differ_from_itself(
    nsqd_process: NsqdProcess, names: Iterator[bytes], tmp_path: Path, nsqd_command: str
) -> None:
    first = random.randrange(1 << 32)
    print(f"seeds from {first}")
    with NsqdProcess(nsqd_command, tmp_path, options=OPTIONS) as another:
        ours, theirs = ((each.tcp_address, each.http_address) for each in (nsqd_process, another))
        with closing(Comparison(ours, theirs, names)) as comparison:
            campaign = Campaign(comparison, STREAMS, lambda seed, difference: None)
            campaign.play(iter(range(first, first + STREAMS)), lambda: True)
    assert campaign.counts.streams == STREAMS
    assert campaign.counts.differences == []


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a response", lambda data: data.replace(b"\0\0\0\6\0\0\0\0OK", b"\0\0\0\6\0\0\0\0KO")),
        ("an error's text", lambda data: data.replace(b"E_INVALID", b"E_UNVALID")),
        ("attempts", lambda data: data.replace(b"\0\1", b"\0\2") if b"m1" in data else data),
        ("a body", lambda data: data.replace(b"m1", b"M1")),
    ],
)
def test_a_changed_answer_is_found_with_its_shortest_stream(
    nsqd_process: NsqdProcess, names: Iterator[bytes], changed: Callable[[Change], Addresses], what: str, change: Change
) -> None:
    acts: list[Act] = [
        Send(0, b"  V2", 0),
        Send(1, b"  V2", 0),
        Send(1, b"PUB TOPIC.d\n\0\0\0\1x"),
        Send(0, b"PUB TOPIC.a\n\0\0\0\2m1"),
        Send(0, b"SUB TOPIC.a c\n"),
        Send(0, b"RDY 1\n", 0),
        Take(0, 1),
        ShutDown(1, b"FIN\n"),
        ShutDown(0),
    ]
    honest = nsqd_process.tcp_address, nsqd_process.http_address
    with closing(Comparison(honest, changed(change), names)) as comparison:
        difference = comparison.differs(acts)
        assert difference is not None, what
        shortest = comparison.shortest(difference)
    assert len(shortest.acts) < len(acts)
    assert shortest.ours != shortest.theirs


def test_an_interrupted_run_reports_its_results_so_far(nsqd_command: str, tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    asked = [
        "--nsqd",
        nsqd_command,
        "--peer",
        nsqd_command,
        "--seed=7",
        "--streams=1000000",
        "--every=0",
        f"--json={file}",
    ]
    command = [sys.executable, "-m", "nsq_conformance.differential.fuzz", *asked]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for connection in process.stderr:  # lines of progress
            if not connection.startswith("of 1000000: 0 streams"):
                break
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate()
    summary = json.loads(file.read_text())
    assert (summary["first_seed"], summary["ended_early"], summary["differences"]) == (7, "interrupted", [])
    assert 0 < summary["streams"] < 1_000_000
    assert f"\n{summary['streams']} streams, " in text
    assert process.returncode == 0


def test_a_seed_always_gives_the_same_stream() -> None:
    assert stream(7) == stream(7)
    assert stream(7) != stream(8)


def test_topic_names_have_the_length_of_the_placeholder_and_are_unique() -> None:
    names = topic_names()
    some = [next(names) for _ in range(5000)]
    assert len(set(some)) == len(some)
    assert {len(name) for name in some} == {5}
