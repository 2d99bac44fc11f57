"""Header blocks, payloads and batches: as declared, within their limits, and for any bytes."""

import contextlib

import pytest
from construct import ConstructError, StreamError, TerminatedError
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.protocol import headers, message, schema
from nsq_compat.protocol.headers import (
    HeaderError,
    checked,
    decode,
    encode,
    join_batch,
    split_batch,
    with_origin_id,
)

names = st.text(alphabet="abcz019-_.!~", min_size=1, max_size=20)
values = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)
some_headers = st.dictionaries(names, values, max_size=8)
bodies = st.binary(min_size=1, max_size=40)


def raw(pairs):
    return [{"name": name.encode(), "value": value.encode()} for name, value in pairs.items()]


@given(some_headers, bodies)
def test_a_payload_is_as_declared_and_is_read_as_it_was_written(pairs, body):
    payload = encode(pairs.items()) + body
    assert payload == schema.PAYLOAD.build({"headers": raw(pairs), "body": body})
    assert decode(payload) == (pairs, body)
    assert checked(payload) == payload


@pytest.mark.parametrize(
    ("value", "ns"),
    [("0", 0), ("1", 10**9), ("1.5", 1_500_000_000), ("1700000000.000000001", 1_700_000_000_000_000_001)],
)
def test_the_time_at_which_a_message_expires(value, ns):
    pairs = [{"name": b"other", "value": b"nsq-expires"}, {"name": b"nsq-expires", "value": value.encode()}]
    payload = schema.PAYLOAD.build({"headers": pairs, "body": b"body"})
    frame = message.make_frame_of_payload(b"0" * 16, 0, payload)
    assert message.expires_ns(frame) == ns
    assert message.expires_ns(message.make_frame(b"0" * 16, 0, b"nsq-expires 1")) == 0
    assert message.expires_ns(message.make_frame_of_payload(b"0" * 16, 0, encode([("a", "nsq-expires")]) + b"b")) == 0


@pytest.mark.parametrize("value", ["0", "300", "999999999.9"])
def test_a_duration_is_no_time(value):
    rule = f"nsq-expires must be an absolute time in Unix seconds, not a duration: {value} is before 2001-09-09"
    with pytest.raises(HeaderError, match=rule):
        encode([("NSQ-Expires", value)])
    pairs = [{"name": b"NSQ-Expires", "value": value.encode()}]
    payload = schema.PAYLOAD.build({"headers": pairs, "body": b"body"})
    with pytest.raises(HeaderError, match=rule):
        checked(payload)
    encode([("nsq-expires", "1000000000")])


def test_names_that_nsqd_does_not_know_are_refused():
    known = "nsq-expires, nsq-id, nsq-origin-id, nsq-origin-topic"
    for name in ("nsq-expire", "NSQ-Expiry", "nsq-"):
        with pytest.raises(HeaderError, match=f'unknown header "{name.lower()}"; of the names .* there are {known}'):
            encode([(name, "1700000000")])
    encode([("nsq", ""), ("x-nsq-expiry", ""), ("nsq-origin-topic", "t"), ("nsq-attempts", "3")])


def test_a_message_of_an_earlier_version_with_such_headers_is_read_and_published_again_without_them():
    pairs = {"nsq-expires": "300", "nsq-expire": "300", "a": "b"}
    payload = schema.PAYLOAD.build({"headers": raw(pairs), "body": b"body"})
    frame = message.make_frame_of_payload(b"0" * 16, 0, payload)
    assert message.headers(frame) == pairs
    assert decode(message.payload_again(frame)) == ({"a": "b"}, b"body")
    assert with_origin_id(pairs) == {"a": "b"}


@pytest.mark.parametrize("value", ["", "-1", "1.", "soon", "1e9", "1700000000000.5", "1.0000000001", " 1", "\u0661"])
def test_a_time_that_is_none_is_refused(value):
    with pytest.raises(HeaderError, match="the value of header nsq-expires must be a time in Unix seconds"):
        encode([("nsq-expires", value)])


@given(some_headers)
def test_names_are_kept_in_lower_case(pairs):
    body = b"body"
    upper = schema.PAYLOAD.build(
        {"headers": [{"name": each["name"].upper(), "value": each["value"]} for each in raw(pairs)], "body": body}
    )
    assert checked(upper) == encode(pairs.items()) + body == encode((n.upper(), v) for n, v in pairs.items()) + body


@given(st.binary(max_size=60))
@example(b"\0\5\1a\0\1bbody")
@example(b"\0\4\1a\0\1body")
def test_any_bytes_are_a_payload_exactly_if_the_declaration_says_so(data):
    try:
        declared = schema.PAYLOAD.parse(data)
    except (StreamError, TerminatedError):
        with pytest.raises(HeaderError):
            decode(data)
        return
    with contextlib.suppress(HeaderError):  # of a name or a value, which the declaration does not restrict
        found, body = decode(data)
        assert list(found.values()) == [each.value.decode() for each in declared.headers]
        assert list(found) == [each.name.decode().lower() for each in declared.headers]
        assert body == declared.body


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=10))
def test_a_batch_is_as_declared_and_is_split_as_it_was_joined(payloads):
    body = join_batch(payloads)
    assert schema.HMPUB_BODY.build(payloads) == len(body).to_bytes(4, "big") + body
    assert list(split_batch(body, 20)) == [payloads]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_a_header_error(data):
    with contextlib.suppress(HeaderError):
        (payloads,) = split_batch(data, 50)
        assert join_batch(payloads) == data
        assert list(schema.HMPUB_BODY.parse(len(data).to_bytes(4, "big") + data)) == payloads


@given(some_headers, bodies, st.integers(0, 1 << 62), st.integers(1, 0xFFFF))
def test_a_frame_with_headers_is_as_declared(pairs, body, timestamp_ns, attempts):
    payload = encode(pairs.items()) + body
    message_id = b"0123456789abcdef"
    frame = message.with_attempts(message.make_frame_of_payload(message_id, timestamp_ns, payload), attempts)
    fields = {"timestamp_ns": timestamp_ns, "attempts": attempts, "id": message_id}
    plain = schema.MESSAGE_FRAME.build({**fields, "body": body})
    if pairs:
        assert frame == schema.MESSAGE_FRAME_WITH_HEADERS.build(
            {**fields, "payload": {"headers": raw(pairs), "body": body}}
        )
    else:
        assert frame == plain
    assert message.has_headers(frame) is bool(pairs)
    assert (message.body(frame), message.headers(frame), message.payload(frame)) == (body, pairs, payload)
    assert message.without_headers([frame, plain]) == [plain, plain]
    assert (message.message_id(frame), message.attempts(frame), message.timestamp_ns(frame)) == (
        message_id, attempts, timestamp_ns
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "v"),
        ("a b", "v"),
        ("ä", "v"),
        ("n" * 129, "v"),
        ("n", "x" * 8193),
        ("n", "a\nb"),
        ("n", "\0"),
        ("n", "\udc80"),
    ],
)
def test_invalid_headers_are_not_encoded(name, value):
    with pytest.raises(HeaderError):
        encode([(name, value)])


def test_the_limits_of_a_block():
    encode((f"n{number}", "") for number in range(schema.MAX_HEADERS))
    with pytest.raises(HeaderError, match="at most 64 headers"):
        encode((f"n{number}", "") for number in range(schema.MAX_HEADERS + 1))
    rest = schema.MAX_HEADER_BLOCK - 2 * 4 - schema.MAX_HEADER_VALUE
    encode([("a", "x" * schema.MAX_HEADER_VALUE), ("b", "x" * rest)])
    with pytest.raises(HeaderError, match="16385 bytes is too long"):
        encode([("a", "x" * schema.MAX_HEADER_VALUE), ("b", "x" * (rest + 1))])


def test_a_declared_block_has_no_rest():
    with pytest.raises(ConstructError):
        schema.HEADER_BLOCK.parse(b"\0\5\1a\0\0x")
    assert headers.is_empty(headers.with_no_headers(b"body"))


@given(some_headers, st.text(alphabet="abcZ09-", min_size=1, max_size=128))
def test_the_publish_id_is_found_among_other_headers(pairs, identity):
    payload = encode([("x", "nsq-id"), *pairs.items(), ("NSQ-Id", identity), ("y", "nsq-id")]) + b"nsq-id body"
    frame = message.make_frame_of_payload(b"0" * 16, 0, payload)
    assert message.publish_id(frame) == identity.encode()
    without = encode([*pairs.items(), ("my-nsq-id.", identity)]) + b"nsq-id body"
    assert message.publish_id(message.make_frame_of_payload(b"0" * 16, 0, without)) == b""
    assert message.publish_id(message.make_frame(b"0" * 16, 0, b"nsq-id body")) == b""


@pytest.mark.parametrize("identity", ["", "x" * 129, "ä" * 65])
def test_an_id_that_is_too_short_or_too_long_is_refused(identity):
    with pytest.raises(HeaderError, match="the value of header nsq-id must have 1 to 128 bytes, not"):
        encode([("nsq-id", identity)])


def test_a_message_that_is_published_again_on_purpose_keeps_its_id_in_another_header():
    assert with_origin_id({"a": "b"}) == {"a": "b"}
    assert with_origin_id({"nsq-id": "1", "a": "b"}) == {"nsq-origin-id": "1", "a": "b"}
    assert with_origin_id({"nsq-id": "2", "nsq-origin-id": "1"}) == {"nsq-origin-id": "1"}
    size = schema.MAX_HEADER_BLOCK - len(encode([("nsq-id", "1"), ("a", ""), ("b", "x" * 8192)])) + 2
    full = {"nsq-id": "1", "a": "x" * size, "b": "x" * 8192}
    frame = message.make_frame_of_payload(b"0" * 16, 0, encode(full.items()) + b"body")
    assert decode(message.payload_again(frame)) == ({"a": full["a"], "b": full["b"]}, b"body")
