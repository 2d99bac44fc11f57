"""Filters JSON messages for nsq_to_nsq: by a field, by its value, and to some of the fields.

Messages are read and written as Go does: numbers have 64 bits, invalid UTF-8 becomes U+FFFD, members are sorted.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from nsq_compat.cli.kinds import parse_float
from nsq_compat.protocol.go_json import JsonError, dumps

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_INT64_END: Final = 2.0**63


class JsonFilter:
    """A message must have `field` with `value`, unless they are empty; without `fields` it passes whole."""

    def __init__(self, field: str = "", value: str = "", fields: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._number = _number_of(value)
        self._fields = sorted(set(fields))

    def __bool__(self) -> bool:
        """Whether messages are parsed at all."""
        return bool(self._field or self._fields)

    def apply(self, body: bytes) -> bytes | None:
        """The filtered message; None if it does not pass. Raises ``JsonError`` if it is not a JSON object."""
        if not self:
            return body
        try:
            return self._applied(body)
        except RecursionError as error:
            raise JsonError(str(error)) from None

    def _applied(self, body: bytes) -> bytes | None:
        members = _read(body)
        if self._field and not self._is_wanted(members):
            return None
        if not self._fields:
            return body
        left = {name: _as_integer(members[name]) for name in self._fields if name in members}
        return dumps(left).encode("utf-8")

    def _is_wanted(self, members: dict[str, Any]) -> bool:
        if self._field not in members or not self._value:
            return self._field in members
        value = _normalized(members[self._field])
        if isinstance(value, bool):
            return self._value == ("true" if value else "false")
        if isinstance(value, float):
            return value == self._number
        return bool(value == self._value)


def _number_of(text: str) -> float | None:
    try:
        return parse_float(text)
    except ValueError:
        return None


# --- JSON as in Go ----------------------------------------------------------------------------------------------------


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = _decoder.decode(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise JsonError(str(error)) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JsonError("not an object")
    return value


def _number(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise JsonError(f"{literal[:20]} is out of range")
    return number


def _as_integer(value: Any) -> Any:
    """nsq_to_nsq: a number without fraction becomes an integer if it fits 64 bits, except inside other values."""
    if isinstance(value, float) and value.is_integer() and -_INT64_END <= value < _INT64_END:
        return int(value)
    return _normalized(value)


def _normalized(value: Any) -> Any:
    """Sort members, and replace single surrogates."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_normalized(each) for each in value]
    if isinstance(value, dict):
        return {name: _normalized(value[name]) for name in sorted(value)}
    return value


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_SURROGATES.sub("\ufffd", name): value for name, value in members}


def _refuse_constant(literal: str) -> None:
    raise JsonError(f"{literal} is not JSON")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
)
