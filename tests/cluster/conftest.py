"""Daemons that answer what a test tells them to: real servers on real sockets, on port 0."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.protocol.go_json import dumps

Send = Callable[[BaseHTTPRequestHandler], None]


class Daemon:
    """Answers by path, query included or not; what it was asked is in `heard`."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._answers: dict[str, Send] = {}
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                target = self.path.lstrip("/")
                daemon.heard.append(f"{self.command} {target}")
                path = target.partition("?")[0]
                (daemon._answers.get(target) or daemon._answers.get(path) or _not_found)(self)

            do_POST = do_GET  # noqa: N815 - the name http.server looks for

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"

    def says(self, path: str, answer: Any = None, status: int = 200) -> "Daemon":
        """Bytes as they are, everything else as JSON."""
        body = answer if isinstance(answer, bytes) else dumps(answer).encode()

        def send(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        return self.does(path, send)

    def does(self, path: str, send: Send) -> "Daemon":
        self._answers[path] = send
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def info(self, **fields: Any) -> dict[str, Any]:
        named = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "host"}
        return {**named, "http_port": self.port, "tcp_port": self.port + 1, **fields}


def _not_found(handler: BaseHTTPRequestHandler) -> None:
    body = b'{"message":"NOT_FOUND"}'
    handler.send_response(404)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def make_daemon() -> Iterator[Callable[[], Daemon]]:
    made: list[Daemon] = []

    def make() -> Daemon:
        made.append(Daemon())
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def daemon(make_daemon: Callable[[], Daemon]) -> Daemon:
    return make_daemon()


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(HttpClientOptions(request_timeout=20))


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return f"127.0.0.1:{server.server_address[1]}"
