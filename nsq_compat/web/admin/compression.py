"""Replies compressed for those who can read them, as NSQ's nsqadmin does it."""

import gzip
import zlib

from flask import Request, Response


def compress(request: Request, response: Response) -> Response:
    """The first of gzip and deflate that is named wins; a name with a weight behind it is not recognised (nsqadmin)."""
    for word in request.headers.get("Accept-Encoding", "").split(","):
        name = word.strip()
        if name in ("gzip", "deflate"):
            body = response.get_data()
            response.set_data(gzip.compress(body, 6, mtime=0) if name == "gzip" else _deflate(body))
            response.headers["Content-Encoding"] = name
            response.headers["Vary"] = "Accept-Encoding"
            break
    return response


def _deflate(body: bytes) -> bytes:
    # nsqadmin: a raw stream, without zlib's head.
    stream = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()
