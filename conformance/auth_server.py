"""A small auth server with authorizations from a dict, which records its requests.

It can give another answer (`answer`), delay answers (`is_open`), and serve TLS.
"""

import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PATIENCE = 30.0
"""Longest wait of a request while the server is not open, in seconds."""
EVERYTHING = ({"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]},)

Authorizations = Iterable[Mapping[str, object]]


class AuthServer:
    """A context manager. `authorizations` are by secret; an unknown secret is answered with 403."""

    def __init__(
        self, authorizations: Mapping[str, Authorizations], *, ttl: int = 60, tls: ssl.SSLContext | None = None
    ) -> None:
        self.authorizations = authorizations
        self.ttl = ttl
        self.answer: tuple[int, bytes] | None = None
        """Status and body of all answers, if not None."""
        self.is_open = threading.Event()
        self.is_open.set()
        self.questions: list[dict[str, list[str]]] = []
        self.requests: list[str] = []
        """Method and path of each request."""
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_open.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer_to(self, question: Mapping[str, list[str]]) -> tuple[int, bytes]:
        """Status and body for the parameters of a request."""
        self.is_open.wait(PATIENCE)
        if self.answer is not None:
            return self.answer
        [secret] = question["secret"]
        if secret not in self.authorizations:
            return 403, b"unknown secret"
        state: dict[str, Any] = {
            "ttl": self.ttl,
            "identity": f"holder of {len(secret)} characters",
            "identity_url": "http://example.com/holder",
            "authorizations": list(self.authorizations[secret]),
        }
        return 200, json.dumps(state).encode()


class _Server(ThreadingHTTPServer):
    owner: AuthServer
    request_queue_size = 1024


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(parse_qs(urlsplit(self.path).query, keep_blank_values=True))

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, question: dict[str, list[str]]) -> None:
        owner = self.server.owner
        owner.requests.append(f"{self.command} {urlsplit(self.path).path}")
        owner.questions.append(question)
        status, body = owner.answer_to(question)
        with suppress(OSError):  # the client has disconnected
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing; tests read `questions`."""
