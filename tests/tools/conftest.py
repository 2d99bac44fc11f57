"""Fixtures of the utilities' tests: a real nsqd, utilities as processes, HTTP servers to send to."""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from nsq_conformance.nsqd_process import installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.tools.nsqd import Nsqd

_topic_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client: object


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave at any time."""


class HttpTarget:
    """A real HTTP server that records its requests. All answers have its `status`, `headers` and `answer`, the body."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer = b"thanks"
        self.closing_count = 0
        """How many of the next requests are answered by closing the connection."""
        self.gate = threading.Event()
        """Answers wait until it is set."""
        self.gate.set()
        self.requests: list[Request] = []
        target = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = dict(self.headers.items())
                target.requests.append(Request(self.command, self.path, headers, body, self.client_address))
                target.gate.wait()
                if target.closing_count:
                    target.closing_count -= 1
                    self.close_connection = True
                    return
                self.send_response(target.status)
                for name, value in target.headers.items():
                    self.send_header(name, value)
                has_body = target.status != 204
                self.send_header("Content-Length", str(len(target.answer) if has_body else 0))
                self.end_headers()
                self.wfile.write(target.answer if has_body else b"")

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def make_target() -> Iterator[Callable[[], HttpTarget]]:
    with ExitStack() as made:
        yield lambda: made.enter_context(closing(HttpTarget()))


@pytest.fixture
def target(make_target: Callable[[], HttpTarget]) -> HttpTarget:
    return make_target()


@pytest.fixture
def serve_go() -> Iterator[str]:
    """The HTTP address of a server that has the topic `t` and, like Go's nsqd, no offsets."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers: dict[str, object] = {
                "/info": {"broadcast_address": "127.0.0.1", "tcp_port": 1, "http_port": server.server_port},
                "/topics": {"topics": ["t"]},
                "/stats": {"topics": [{"topic_name": "t", "channels": []}]},
            }
            answer = answers.get(self.path.partition("?")[0])
            body = json.dumps(answer or {"message": "NOT_FOUND"}).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a utility by name and flags; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start_it(name: str, *flags: str) -> "subprocess.Popen[str]":
        command = [str(Path(sys.executable).with_name(name)), *flags]
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start_it
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def run() -> Callable[..., "subprocess.CompletedProcess[bytes]"]:
    """Run a utility, by name and flags, to its end."""

    def run_it(name: str, *flags: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [str(Path(sys.executable).with_name(name)), *flags]
        return subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)

    return run_it


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """One nsqd for all tests, each of which has a topic of its own."""
    with Nsqd(installed_nsqd(), tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def topic(nsqd: Nsqd) -> str:
    """A topic with a channel, `c`."""
    name = f"topic.{next(_topic_numbers)}"
    nsqd.create_channel(name, "c")
    return name


@pytest.fixture
def publish(nsqd: Nsqd, topic: str) -> Callable[..., None]:
    return lambda *bodies: nsqd.publish(topic, *bodies)


@pytest.fixture
def stat(nsqd: Nsqd, topic: str) -> Callable[[str], int]:
    return lambda name: nsqd.stat(topic, name)


@pytest.fixture
def is_idle(nsqd: Nsqd, topic: str) -> Callable[[], bool]:
    return lambda: nsqd.unfinished(topic) == 0


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


@pytest.fixture
def announced_nsqd(lookupd: NsqlookupdProcess, tmp_path: Path) -> Iterator[Nsqd]:
    """An nsqd that `lookupd` knows."""
    (tmp_path / "announced").mkdir()
    options = (f"--lookupd-tcp-address={lookupd.tcp_address}",)
    with Nsqd(installed_nsqd(), tmp_path / "announced", options=options) as process:
        yield process


@pytest.fixture
def start_consumer(nsqd: Nsqd) -> Iterator[Callable[..., HttpConsumerProcess]]:
    """Start a program with these flags beside nsqd; it is stopped at the end of the test."""
    with ExitStack() as running:

        def start(program: str, *flags: str) -> HttpConsumerProcess:
            options = [f"--nsqd-tcp-address={nsqd.tcp_address}", *flags]
            return running.enter_context(HttpConsumerProcess(installed(program), options=options))

        yield start
