"""A fake nsqlookupd with /lookup on a real socket; a test sets its responses and their timing."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class FakeLookupd:
    """`addresses` are its nsqd, for any topic; `reply` replaces them by a status and a body, and
    `replies` do so once each before.

    With `held` set it answers only when `release` is called.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.reply: tuple[int, bytes] | None = None
        self.replies: list[tuple[int, bytes]] = []
        self.held = False
        self.asked: list[str] = []
        self._released = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake._answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += parse_qs(urlsplit(request.path).query).get("topic", [])
        if self.held:
            self._released.wait()
        reply = self.replies.pop(0) if self.replies else self.reply
        status, body = reply or (200, json.dumps({"channels": [], "producers": self._producers()}).encode())
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _producers(self) -> list[dict[str, object]]:
        return [
            {"broadcast_address": host, "tcp_port": int(port), "http_port": 1, "hostname": "h"}
            for host, _, port in (address.rpartition(":") for address in self.addresses)
        ]
