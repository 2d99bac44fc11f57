"""A real HTTP server on port 0 that sends answers chosen by the test."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from nsq_compat.protocol.go_json import dumps

Send = Callable[[BaseHTTPRequestHandler], None]


class Daemon:
    """Answers by path, with or without query; any POST succeeds otherwise.

    `heard` has the requests, with bodies after a blank.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.tokens: list[str] = []
        self._answers: dict[str, Send] = {}
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                target = self.path.lstrip("/")
                daemon.heard.append(f"{self.command} {target} {body}".rstrip())
                daemon.tokens.append(self.headers.get("Authorization", ""))
                unknown = reply(b"") if self.command == "POST" else _not_found
                daemon._answers.get(target, daemon._answers.get(target.partition("?")[0], unknown))(self)

            do_POST = do_PUT = do_GET  # noqa: N815 - the name http.server looks for

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"

    @property
    def orders(self) -> list[str]:
        """The POST requests in `heard`."""
        return [heard.removeprefix("POST ") for heard in self.heard if heard.startswith("POST ")]

    def says(self, path: str, answer: Any = None, status: int = 200) -> "Daemon":
        """Bytes as they are, everything else as JSON."""
        return self.does(path, reply(answer, status))

    def does(self, path: str, send: Send) -> "Daemon":
        self._answers[path] = send
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def info(self, **fields: Any) -> dict[str, Any]:
        named = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "host"}
        return {**named, "http_port": self.port, "tcp_port": self.port + 1, **fields}


def reply(answer: Any, status: int = 200) -> Send:
    body = answer if isinstance(answer, bytes) else dumps(answer).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


_not_found = reply({"message": "NOT_FOUND"}, 404)
