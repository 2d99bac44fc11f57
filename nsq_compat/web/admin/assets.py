"""/ping, and the files of `static/`, which lie beside the package in a checkout and inside it when installed."""

import mimetypes
from pathlib import Path
from typing import Final

from flask import Blueprint, Response

import nsq_compat
from nsq_compat.web.admin.access import service

assets = Blueprint("assets", __name__)

_PLAIN: Final = "text/plain; charset=utf-8"


def folder(name: str) -> Path:
    """`templates` or `static`."""
    package = Path(nsq_compat.__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@assets.get("/ping")
def ping() -> Response:
    return Response("OK", 200, {"Content-Type": _PLAIN})


@assets.get("/static/<asset>")
def static(asset: str) -> Response:
    try:
        return _asset(asset)
    except (OSError, ValueError):  # the latter from a name with a zero byte
        return Response("NOT_FOUND", 404, {"Content-Type": _PLAIN})


# nsqadmin: both names serve the same files.
assets.add_url_rule("/fonts/<asset>", "fonts", static)


def _asset(asset: str) -> Response:
    chosen = service().options.dev_static_dir
    return _file(Path(chosen) if chosen else folder("static"), asset)


def _file(where: Path, name: str) -> Response:
    if name.startswith("."):
        raise FileNotFoundError(name)
    content = (where / name).read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return Response(content, 200, {"Content-Type": kind, "Cache-Control": "max-age=300"})
