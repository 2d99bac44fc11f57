import gzip
import zlib

import pytest


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate, gzip", "deflate"),
        ("gzip;q=1.0", None),
        ("br", None),
        ("", None),
    ],
)
def test_the_first_encoding_we_know_is_used(browser, accepted, encoding):
    answer = browser.get("/ping", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("Content-Encoding") == encoding
    read = {None: bytes, "gzip": gzip.decompress, "deflate": lambda data: zlib.decompress(data, -zlib.MAX_WBITS)}
    assert read[encoding](answer.data) == b"OK"
    assert answer.headers.get("Vary") == ("Accept-Encoding" if encoding else None)
