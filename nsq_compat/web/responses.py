"""The replies of NSQ's HTTP APIs, in their two forms, and errors as exceptions.

V1, used nearly everywhere: text or compact JSON, errors as ``{"message":"<CODE>"}``, always marked by a header. Plain,
for the few routes people call by hand: text, errors too.
"""

from collections.abc import Iterable
from typing import Any, Final

from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.http_message import TEXT, Response

JSON: Final = ("Content-Type", "application/json; charset=utf-8")
HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# nsqd: on the wire the name has Go's canonical spelling.
V1: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")


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


def error(status: int, code: str, extra: Iterable[tuple[str, str]] = ()) -> Response:
    return Response(status, dumps({"message": code}).encode("utf-8"), (*extra, JSON, V1))


def plain(body: str, status: int = 200) -> Response:
    return Response(status, body.encode("utf-8", errors="surrogateescape"), (TEXT,) if body else ())


OK: Final = text(b"OK")
EMPTY: Final = text(b"")
