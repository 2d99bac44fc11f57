"""The headers of messages, which NSQ does not have: names and values beside the body (docs/decisions/0031).

A *payload* is what a producer sends and a frame with headers has after the id: the header block, then the body
(``schema.PAYLOAD``). A message without headers has no block: its frame is NSQ's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.layout import SIZE_OF_SIZE, derive, pack_size, read_size
from nsq_compat.protocol.schema import MAX_HEADER_BLOCK, MAX_HEADER_NAME, MAX_HEADER_VALUE, MAX_HEADERS

Headers = Mapping[str, str]

EXPIRES: Final = "nsq-expires"
"""When the message is not to be delivered any more: Unix seconds, also with decimals."""
ID: Final = "nsq-id"
"""The publish id: a topic with a `dedup_window` publishes messages of one id only once (``queue.publish_ids``)."""
ORIGIN_ID: Final = "nsq-origin-id"
"""The publish id of a message that was published again on purpose."""
ORIGIN_TOPIC: Final = "nsq-origin-topic"
ORIGIN_CHANNEL: Final = "nsq-origin-channel"
ORIGIN_EXPIRES: Final = "nsq-origin-expires"
FIRST_PUBLISHED: Final = "nsq-first-published"
"""Nanoseconds since 1970. A message that fails again after it was redriven keeps it."""
ATTEMPTS: Final = "nsq-attempts"
"""Deliveries."""
ORIGIN_MESSAGE_ID: Final = "nsq-origin-message-id"
DEAD_LETTER_REASON: Final = "nsq-dead-letter-reason"
"""``policy.dead_letters`` has the values."""
_DEAD_LETTER: Final = (
    *(ORIGIN_TOPIC, ORIGIN_CHANNEL, ORIGIN_MESSAGE_ID, ORIGIN_EXPIRES, FIRST_PUBLISHED, ATTEMPTS),
    DEAD_LETTER_REASON,
)
MAX_ID: Final = 128
NO_HEADERS: Final[Headers] = MappingProxyType({})

_SHORT_SIZE: Final = derive(schema.SHORT_SIZE)
_SIZE: Final[int] = _SHORT_SIZE.size
_pack_short: Final = _SHORT_SIZE.pack
_read_short: Final = _SHORT_SIZE.unpack_from
_is_name: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_is_ascii_value: Final = re.compile(rb"[\t\x20-\x7e]*").fullmatch
_has_control: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]").search
_is_time: Final = re.compile(rb"[0-9]{1,12}(\.[0-9]{1,9})?").fullmatch
_EXPIRES: Final = EXPIRES.encode("ascii")
_ID: Final = ID.encode("ascii")
_NS_PER_SECOND: Final = 1_000_000_000
_SHOWN: Final = 40
_RESERVED: Final = b"nsq-"
_KNOWN: Final = tuple(name.encode("ascii") for name in (EXPIRES, ID, ORIGIN_ID, *_DEAD_LETTER))
"""All names that begin with `_RESERVED`. Programs that pass dead letters on publish all of them."""
_FIRST_TIME: Final = 1_000_000_000
"""In 2001, Unix seconds. What is smaller was meant as a duration."""
MAX_PART: Final = 4096
"""Payloads of an HMPUB that are split at once, in about a millisecond."""
_EMPTY_BLOCK: Final[bytes] = _pack_short(0)


class HeaderError(ValueError):
    """Headers that break a rule or a limit. The text says which."""


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    """The header block. Names become lower case. Raises ``HeaderError``."""
    return encode_raw([(_encoded(name, "name"), _encoded(value, "value")) for name, value in headers])


def encode_raw(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """As ``encode``, for names and values in UTF-8."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        _add(found, name, value)
    return _block(found)


def decode(payload: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a payload. Raises ``HeaderError``."""
    found, begin = _read(payload)
    return {name.decode("ascii"): value.decode("utf-8") for name, value in found.items()}, payload[begin:]


def checked(payload: bytes) -> bytes:
    """A payload that a client sent, with names in lower case. Raises ``HeaderError``."""
    found, begin = _read(payload)
    if begin == len(payload):
        raise HeaderError("invalid message body size 0")
    block = _block(found)
    return payload if payload.startswith(block) else block + payload[begin:]


def body_begin(data: bytes, begin: int) -> int:
    """Where the body begins in data that has a sound payload at `begin`."""
    size: int = _read_short(data, begin)[0]
    return begin + _SIZE + size


def expires_ns(data: bytes, begin: int) -> int:
    """When the message expires, in nanoseconds since 1970; 0 if never. `data` has a sound payload at `begin`."""
    # Hot: runs for every delivery of such a message, so a search for the name comes first.
    if data.find(_EXPIRES, begin, body_begin(data, begin)) < 0:
        return 0
    value = _value_of(data, begin, _EXPIRES)
    seconds, _, decimals = value.partition(b".")
    return int(seconds) * _NS_PER_SECOND + int(decimals.ljust(9, b"0")) if _is_time(value) else 0


def publish_id(data: bytes, begin: int) -> bytes:
    """The publish id, b"" if there is none. `data` has a sound payload at `begin`."""
    return _value_of(data, begin, _ID) if data.find(_ID, begin, body_begin(data, begin)) >= 0 else b""


def _value_of(data: bytes, begin: int, name: bytes) -> bytes:
    """The value of a header of the sound payload at `begin`, b"" if it is not there."""
    at, end = begin + _SIZE, body_begin(data, begin)
    while at < end:
        name_end = at + 1 + data[at]
        value_end = name_end + _SIZE + _read_short(data, name_end)[0]
        if data[at] == len(name) and data.startswith(name, at + 1):
            return data[name_end + _SIZE : value_end]
        at = value_end
    return b""


def with_origin_id(headers: Headers) -> Headers:
    """The headers of a message that is published again on purpose, which its publish id must not prevent.

    Those that may not be published, which an earlier version accepted, are left out.
    """
    headers = {name: value for name, value in headers.items() if _may_be_published(name, value)}
    if ID not in headers:
        return headers
    renamed = {name: value for name, value in headers.items() if name != ID}
    try:
        encode([*renamed.items(), (ORIGIN_ID, headers[ID])])
    except HeaderError:  # there is no room for the longer name, or it is there
        return renamed
    renamed[ORIGIN_ID] = headers[ID]
    return renamed


def has_reserved(data: bytes, begin: int) -> bool:
    """Whether the message may have headers that nsqd knows. `data` has a sound payload at `begin`."""
    return data.find(_RESERVED, begin, body_begin(data, begin)) >= 0


def _may_be_published(name: str, value: str) -> bool:
    if not name.startswith("nsq-"):
        return True
    try:
        encode([(name, value)])
    except HeaderError:
        return False
    return True


def declared_size(payload: bytes) -> int:
    """The size of the header block as its first bytes have it; a payload that is not sound may be shorter."""
    return int.from_bytes(payload[:_SIZE], "big")


def is_empty(payload: bytes) -> bool:
    """Whether a sound payload has no headers."""
    return payload.startswith(_EMPTY_BLOCK)


def with_no_headers(body: bytes) -> bytes:
    """The payload of a body."""
    return _EMPTY_BLOCK + body


def split_batch(body: bytes, max_msg_size: int) -> Iterator[list[bytes]]:
    """The payloads in the body of an HMPUB, which are not checked. Raises ``HeaderError``.

    They come in parts of `MAX_PART`; the last one has fewer, possibly none.
    """
    end = len(body)
    count = read_size(body, 0)[0] if end >= SIZE_OF_SIZE else 0
    if count <= 0 or count > end:
        raise HeaderError(f"invalid message count {count}")
    payloads: list[bytes] = []
    begin = SIZE_OF_SIZE
    for number in range(count):
        begin += SIZE_OF_SIZE
        size: int = read_size(body, begin - SIZE_OF_SIZE)[0] if begin <= end else 0
        if size <= 0 or begin + size > end:
            raise HeaderError(f"invalid message({number}) body size {size}")
        if size > max_msg_size:
            raise HeaderError(f"message too big {size} > {max_msg_size}")
        payloads.append(body[begin : begin + size])
        begin += size
        if len(payloads) == MAX_PART:
            yield payloads
            payloads = []
    if begin != end:
        raise HeaderError(f"has {end - begin} bytes after its last message")
    yield payloads


def join_batch(payloads: Sequence[bytes]) -> bytes:
    """The body of an HMPUB, without its size."""
    sizes = map(pack_size, map(len, payloads))
    return pack_size(len(payloads)) + b"".join(chain.from_iterable(zip(sizes, payloads, strict=True)))


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise HeaderError(f"a header has a {what} that is not UTF-8: {text!r:.80}") from None


def _read(payload: bytes) -> tuple[dict[bytes, bytes], int]:
    """The headers by name, in lower case, and where the body begins. Raises ``HeaderError``."""
    # Hot: runs for every message published with headers.
    if len(payload) < _SIZE:
        raise HeaderError("the message is shorter than the size of its header block")
    found: dict[bytes, bytes] = {}
    begin: int = _SIZE
    end = body_begin(payload, 0)
    if end > len(payload):
        raise HeaderError(f"the header block of {end - _SIZE} bytes is longer than the message")
    if end - _SIZE > MAX_HEADER_BLOCK:
        raise HeaderError(f"a header block of {end - _SIZE} bytes is too long, {MAX_HEADER_BLOCK} are allowed")
    while begin < end:
        name_end = begin + 1 + payload[begin]
        value_begin = name_end + _SIZE
        if value_begin > end:
            raise HeaderError("the header block ends within a header")
        size: int = _read_short(payload, name_end)[0]
        value_end = value_begin + size
        if value_end > end:
            raise HeaderError("the header block ends within a header")
        _add(found, payload[begin + 1 : name_end], payload[value_begin:value_end])
        begin = value_end
    return found, end


def _add(found: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    """Add a header if it is valid. Raises ``HeaderError``."""
    name = name.lower()
    if len(name) > MAX_HEADER_NAME or not _is_name(name):
        raise HeaderError(f"invalid header name {quote(name[:_SHOWN])}, 1 to {MAX_HEADER_NAME} token characters")
    if name in found:
        raise HeaderError(f"the header {name.decode()} is there twice")
    if len(found) == MAX_HEADERS:
        raise HeaderError(f"a message may have at most {MAX_HEADERS} headers")
    if len(value) > MAX_HEADER_VALUE:
        raise HeaderError(f"the value of header {name.decode()} has {len(value)} bytes, {MAX_HEADER_VALUE} are allowed")
    if not _is_ascii_value(value):
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            raise HeaderError(f"the value of header {name.decode()} is not UTF-8") from None
        if _has_control(text):
            raise HeaderError(f"the value of header {name.decode()} has a control character")
    if name == _EXPIRES and not _is_time(value):
        raise HeaderError(f"the value of header {EXPIRES} must be a time in Unix seconds, not {quote(value[:_SHOWN])}")
    if name == _ID and not 0 < len(value) <= MAX_ID:
        raise HeaderError(f"the value of header {ID} must have 1 to {MAX_ID} bytes, not {len(value)}")
    found[name] = value


def _check_reserved(name: bytes, value: bytes) -> None:
    if name not in _KNOWN:
        known = ", ".join(each.decode("ascii") for each in _KNOWN)
        raise HeaderError(f"unknown header {quote(name[:_SHOWN])}; of the names that begin with nsq- there are {known}")
    if name == _EXPIRES and int(value.partition(b".")[0]) < _FIRST_TIME:
        raise HeaderError(
            f"the value of header {EXPIRES} must be an absolute time in Unix seconds, not a duration: {value.decode()} "
            "is before 2001-09-09"
        )


def _block(found: dict[bytes, bytes]) -> bytes:
    """The block of valid headers. Raises ``HeaderError`` if it is too long, or has some that are not published.

    Messages in the log may have these, so they can still be read.
    """
    pieces = [b""]
    for name, value in found.items():
        if name.startswith(_RESERVED):
            _check_reserved(name, value)
        pieces += (bytes([len(name)]), name, _pack_short(len(value)), value)
    joined = b"".join(pieces)
    if len(joined) > MAX_HEADER_BLOCK:
        raise HeaderError(f"a header block of {len(joined)} bytes is too long, {MAX_HEADER_BLOCK} are allowed")
    return _pack_short(len(joined)) + joined
