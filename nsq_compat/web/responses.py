"""Responses of NSQ's HTTP APIs, and errors as exceptions.

Most routes use V1: text or compact JSON, errors as ``{"message":"<CODE>"}``, marked by a header. The few others are
plain: text without the header, errors too.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.http_message import TEXT, Response

JSON: Final = ("Content-Type", "application/json; charset=utf-8")
HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# nsqd: Go sends the name in its canonical spelling.
V1: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")
_MIN_PIECE_BYTES: Final = 64 * 1024


class ApiError(Exception):
    """Ends a request with an error response. Clients match on the code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


def text(body: bytes) -> Response:
    # nsqd: an empty body has no type.
    return Response(200, body, (TEXT, V1) if body else (V1,))


def picked(value: object, keys: str) -> dict[str, Any]:
    """These attributes of a value, in order. A key with "?" is left out if its value is empty, 0 or false."""
    return {name: found for name, optional in _parsed(keys) if (found := getattr(value, name)) or not optional}


@lru_cache(maxsize=32)
def _parsed(keys: str) -> tuple[tuple[str, bool], ...]:
    return tuple((key.rstrip("?"), key.endswith("?")) for key in keys.split())


def json(value: Any) -> Response:
    return encoded_json(dumps(value).encode("utf-8"))


def encoded_json(body: bytes) -> Response:
    """As `json`, for encoded JSON."""
    return Response(200, body, (JSON, V1))


def long_text(pieces: Iterable[bytes]) -> Response:
    """As `text`, for text made of short pieces."""
    body, *rest = _joined(pieces)
    return Response(200, body, (TEXT, V1), rest=tuple(rest))


def long_json(pieces: Iterable[bytes]) -> Response:
    """As `encoded_json`, for JSON made of short pieces."""
    body, *rest = _joined(pieces)
    return Response(200, body, (JSON, V1), rest=tuple(rest))


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join short pieces into fewer, longer ones; at least one."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _MIN_PIECE_BYTES:
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
