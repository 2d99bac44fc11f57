"""Bytes to requests, without a socket: however the input is cut, and whatever it is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_request_reader import RequestReader
from tests.cuts import cut

LIMIT = 300
PLACES = st.lists(st.integers(0, 5000), max_size=12)
TOO_BIG = Response(413, b"too big", close=True)


def reader() -> RequestReader:
    return RequestReader(lambda head: Admission(LIMIT, TOO_BIG), HttpLimits(max_head_bytes=2000), "peer")


def read_all(pieces: list[bytes]) -> list[Request | Response]:
    one = reader()
    return [item for piece in pieces for item in one.receive_data(piece)]


REQUESTS = [
    b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x:1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nT: r\r\n\r\n",
    b"POST /pub HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhi\r\n0\r\n\r\n",
    b"GET /u HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"GET http://host/absolute%20path?q HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT host:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /close HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /big HTTP/1.1\r\nHost: x\r\nContent-Length: 301\r\n\r\n",
    b"nonsense\r\n\r\n",
]


@given(st.lists(st.sampled_from(REQUESTS), max_size=8), PLACES)
def test_how_the_input_is_cut_changes_nothing(requests, places):
    data = b"".join(requests)
    assert read_all(cut(data, places)) == read_all([data])


@pytest.mark.parametrize("body", [b"Content-Length: 200\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nc8\r\n"])
def test_a_body_that_the_response_does_not_depend_on_is_not_kept(body):
    reader = RequestReader(lambda head: Admission(LIMIT, TOO_BIG, is_dropped=True), HttpLimits(), "peer")
    end = b"\r\n0\r\n\r\n" if b"chunked" in body else b""
    for _ in range(2):
        assert reader.receive_data(b"POST /pub HTTP/1.1\r\nHost: x\r\n" + body + b"x" * 199) == []
        assert reader._body == b""
        (request,) = reader.receive_data(b"x" + end)
        assert isinstance(request, Request)
        assert (request.body, reader.body_size) == (b"", 200)
    (request,) = reader.receive_data(b"POST /pub HTTP/1.1\r\nHost: x\r\n" + body + b"x" * 200 + end)
    assert isinstance(request, Request)
    assert request.body == b""
    (refusal,) = reader.receive_data(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 301\r\n\r\n")
    assert refusal is TOO_BIG


def test_http_1_0_has_no_chunks():
    """A proxy that takes it for a request without a body would see another request in its chunks."""
    head = b"POST /pub HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
    (refusal,) = read_all([head + b"1\r\na\r\n0\r\n\r\n" + REQUESTS[0]])
    assert isinstance(refusal, Response)
    assert (refusal.status, refusal.close) == (501, True)


def test_escapes_of_a_path_longer_than_any_route_are_left():
    """Decoding 60 KB takes 3 ms, and hundreds of connections may receive them at once."""
    for count, expected in ((1000, "/" + "A" * 1000), (2000, "/" + "%41" * 2000)):
        reader = RequestReader(lambda head: Admission(LIMIT, TOO_BIG), HttpLimits(), "peer")
        (request,) = reader.receive_data(b"GET /" + b"%41" * count + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert isinstance(request, Request)
        assert request.path == expected


class ParserOnly(RequestReader):
    """Knows no head: everything goes through the parser."""

    def read_known(self, data: bytes) -> Request | None:
        return None


def post(body: bytes, length: bytes | None = None, head: bytes = b"Host: x\r\nContent-Length: %b\r\nA: b\r\n") -> bytes:
    digits = b"%d" % len(body) if length is None else length
    return b"POST /pub?topic=t HTTP/1.1\r\n" + head % digits + b"\r\n" + body


# What one read may bring: like the request before, nearly like it, or not at all.
posts = st.builds(post, st.binary(max_size=40) | st.sampled_from([b"\r\n\r\n", b"\r\nx", b"x" * LIMIT, b"x" * 301]))
unlike = st.sampled_from(
    [
        post(b"abc", b"003"),
        post(b"abc", b"2"),
        post(b"abc", b"4"),
        post(b"abc", b"3 "),
        post(b"abc", b""),
        post(b"abc", b"-3"),
        post(b"abc", b"0000000003"),
        post(b"abc") + b"\r\n",
        b"\r\n" + post(b"abc"),
        b"\r",
        post(b"abc", head=b"Host: x\r\ncontent-LENGTH:%b\r\nConnection: keep-alive\r\n"),
        post(b"abc", head=b"Host: x\r\nContent-Length: %b\r\nContent-Length: 3\r\n"),
        post(b"abc", head=b"Host: x\r\nContent-Length: %b\r\nExpect: 100-continue\r\n"),
        post(b"abc", head=b"Host: x\r\nContent-Length: %b\r\nConnection: close\r\n"),
        post(b"abc", head=b"Host: x\r\nX: 1\r\n Content-Length: 9\r\nContent-Length: %b\r\n"),
        post(b"abc", head=b"Content-Length: %b\r\n"),
    ]
)


def both(pieces: list[bytes]) -> tuple[list[Request | Response], list[Request | Response]]:
    limits = HttpLimits(max_head_bytes=2000)
    readers = [kind(lambda head: Admission(LIMIT, TOO_BIG), limits, "peer") for kind in (RequestReader, ParserOnly)]
    items: tuple[list[Request | Response], list[Request | Response]] = ([], [])
    for piece in pieces:
        for one, heard in zip(readers, items, strict=True):
            heard += one.receive_data(piece)
        assert [(one.finished, one.owes_continue, one.phase) for one in readers[:1]] == [
            (one.finished, one.owes_continue, one.phase) for one in readers[1:]
        ]
    return items


@given(st.lists(posts | posts | unlike | st.sampled_from(REQUESTS) | st.binary(max_size=20), max_size=12), PLACES)
@pytest.mark.interpreted
@example([post(b"\r\nab") + b"\r\n", post(b"\r\nab", b"2")], [])  # a line break behind the body is no part of the head
def test_a_remembered_head_gives_the_same_request_as_the_parser(reads, places):
    known, parsed = both(reads)
    assert known == parsed
    known, parsed = both(cut(b"".join(reads), places))
    assert known == parsed


@pytest.mark.interpreted
def test_a_request_like_the_one_before_may_be_cut_anywhere():
    first, second, third = post(b"one"), post(b"the second"), post(b"")
    for place in range(len(second) + 1):
        known, parsed = both([first, second[:place], second[place:] + third])
        assert known == parsed
        assert [item.body for item in known if isinstance(item, Request)] == [b"one", b"the second", b""]


def test_a_head_is_remembered_for_bodies_of_any_length():
    one = reader()
    assert one.read_known(post(b"first")) is None
    one.receive_data(post(b"first"))
    request = one.read_known(post(b"one that is longer"))
    assert request is not None
    assert (request.path, request.query) == ("/pub", b"topic=t")
    assert (request.body, request.headers[b"content-length"]) == (b"one that is longer", b"18")
    assert one.read_known(post(b"x" * (LIMIT + 1))) is None


def test_heads_that_always_differ_are_no_longer_remembered():
    one = reader()
    for number in range(20):
        one.receive_data(post(b"x", head=b"Host: x\r\nContent-Length: %%b\r\nId: %d\r\n" % number))
    last = post(b"x", head=b"Host: x\r\nContent-Length: %b\r\nId: 19\r\n")
    assert one.read_known(last) is None
    assert len(one.receive_data(last)) == 1


@given(st.lists(st.binary(max_size=80) | st.sampled_from(REQUESTS), max_size=8))
def test_any_bytes_lead_to_requests_or_a_refusal_at_the_end(pieces):
    one = reader()
    items = [item for piece in pieces for item in one.receive_data(piece)]
    assert all(isinstance(item, Request) for item in items[:-1])
    if items and isinstance(items[-1], Response):
        assert items[-1].close
        assert one.finished
    assert one.body_size <= LIMIT + 80


def test_a_body_behind_an_upgrade_that_is_ignored_is_read():
    upgrade, _, end = REQUESTS[3:6]
    first, second = read_all([upgrade + end])
    assert isinstance(first, Request)
    assert (first.method, first.path, first.body) == ("POST", "/pub", b"abc")
    assert isinstance(second, Request)
    assert second.path == "/u"


@pytest.mark.parametrize("body", [b"", b"Content-Length: 3\r\n\r\nabc"])
@pytest.mark.parametrize(
    ("version", "connection", "keeps_alive"),
    [
        (b"1.1", b"upgrade", True),
        (b"1.1", b"Upgrade, close", False),
        (b"1.0", b"upgrade", False),
        (b"1.0", b"upgrade, keep-alive", True),
    ],
)
def test_an_upgrade_that_is_ignored_does_not_keep_a_connection_that_is_to_close(version, connection, keeps_alive, body):
    head = b"POST /up HTTP/%b\r\nHost: x\r\nUpgrade: h2c\r\nConnection: %b\r\n" % (version, connection)
    items = read_all([head + (body or b"\r\n") + REQUESTS[0]])
    assert [isinstance(item, Request) and item.keep_alive for item in items] == (
        [True, True] if keeps_alive else [False]
    )


def test_a_request_is_split_into_its_parts():
    (request,) = read_all([REQUESTS[6]])
    assert isinstance(request, Request)
    assert (request.method, request.path, request.query) == ("GET", "/absolute path", b"q")
    assert request.headers == {b"host": b"x", b"a": b"1, 2"}
    assert (request.remote_address, request.keep_alive, request.version) == ("peer", True, "1.1")


def test_continue_is_owed_only_before_the_body():
    one = reader()
    head, body = REQUESTS[1][:-5], REQUESTS[1][-5:]
    assert (one.receive_data(head), one.owes_continue) == ([], True)
    one.expects_continue = False
    assert (one.receive_data(b""), one.owes_continue) == ([], False)
    assert len(one.receive_data(body)) == 1


def test_many_small_chunks_are_held_as_one_body():
    chunks = b"".join(b"1\r\nx\r\n" for _ in range(LIMIT))
    (request,) = read_all([b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n"])
    assert isinstance(request, Request)
    assert request.body == b"x" * LIMIT


def test_nothing_is_read_behind_a_refusal():
    (refusal,) = read_all([REQUESTS[10] + REQUESTS[0], REQUESTS[0]])
    assert refusal is TOO_BIG
