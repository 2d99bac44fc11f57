"""Query strings, parsed as Go's url.ParseQuery parses them: which queries are malformed is part of the API."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from nsq_compat.protocol.names import is_valid_name
from nsq_compat.web.responses import ApiError

MAX_CACHED_LENGTH: Final = 256


def parse_query(query: bytes) -> Mapping[str, str]:
    """The first value of every parameter, read-only. Raises ``ApiError`` for a malformed query.

    Bytes that are not UTF-8 become surrogates, which no valid name contains.
    """
    # A publisher sends the same short query with every message.
    return _parse_cached(query) if len(query) <= MAX_CACHED_LENGTH else _parse(query)


def _parse(query: bytes) -> Mapping[str, str]:
    parameters: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair:
            continue
        if b";" in pair:
            raise ApiError(400, "INVALID_REQUEST")
        name, _, value = pair.partition(b"=")
        parameters.setdefault(_unescape(name), _unescape(value))
    return parameters


_parse_cached = lru_cache(maxsize=1024)(_parse)

_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


def _unescape(text: bytes) -> str:
    if b"%" in text:
        for escape in text.split(b"%")[1:]:
            if len(escape) < 2 or escape[0] not in _HEX or escape[1] not in _HEX:
                raise ApiError(400, "INVALID_REQUEST")
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return unquote_to_bytes(text).decode("utf-8", errors="surrogateescape")


def required(parameters: Mapping[str, str], key: str) -> str:
    """A parameter's value. Raises ``ApiError`` if it is missing."""
    value = parameters.get(key)
    if value is None:
        raise ApiError(400, f"MISSING_ARG_{key.upper()}")
    return value


def required_name(parameters: Mapping[str, str], key: str) -> str:
    """A topic's or channel's name. Raises ``ApiError`` if it is missing or invalid."""
    name = required(parameters, key)
    if not is_valid_name(name):
        raise ApiError(400, f"INVALID_ARG_{key.upper()}")
    return name


_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def parse_boolean(value: str) -> bool | None:
    """None for anything but NSQ's four spellings. Each route decides how to treat that."""
    return _BOOLEANS.get(value)
