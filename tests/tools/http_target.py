"""A real HTTP server that records its requests, and whose answers can be set."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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
    """`status`, `headers` and `answer`, the body, are those of all answers."""

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
