"""The replies of NSQ's HTTP APIs, in their two forms, and errors as exceptions.

V1, used nearly everywhere: text or compact JSON, errors as ``{"message":"<CODE>"}``, always marked by a header. Plain,
for the few routes people call by hand: text, errors too.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.http_message import TEXT, Response

JSON: Final = ("Content-Type", "application/json; charset=utf-8")
HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# nsqd: on the wire the name has Go's canonical spelling.
V1: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")
_PIECE_BYTES: Final = 64 * 1024


class ApiError(Exception):
    """Ends a V1 request; rendered by `error`. The code is what clients match on."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


def text(body: bytes) -> Response:
    # nsqd: an empty body has no type.
    return Response(200, body, (TEXT, V1) if body else (V1,))


def json(value: Any) -> Response:
    return encoded_json(dumps(value).encode("utf-8"))


def encoded_json(body: bytes) -> Response:
    """The same of what is JSON already."""
    return Response(200, body, (JSON, V1))


def long_text(pieces: Iterable[bytes]) -> Response:
    """The same of text that comes in short pieces."""
    body, *rest = _joined(pieces)
    return Response(200, body, (TEXT, V1), rest=tuple(rest))


def long_json(pieces: Iterable[bytes]) -> Response:
    """The same of JSON that is encoded already and comes in short pieces."""
    body, *rest = _joined(pieces)
    return Response(200, body, (JSON, V1), rest=tuple(rest))


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Fewer and longer ones; there is one at least."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


def error(status: int, code: str, extra: Iterable[tuple[str, str]] = ()) -> Response:
    return Response(status, dumps({"message": code}).encode("utf-8"), (*extra, JSON, V1))


def plain(body: str, status: int = 200) -> Response:
    return Response(status, body.encode("utf-8", errors="surrogateescape"), (TEXT,) if body else ())


OK: Final = text(b"OK")
EMPTY: Final = text(b"")
