"""JSON the way Go reads and writes it, because clients were written against that.

Writing differs from Python's in spaces, in escapes (``<``, ``>``, ``&``, U+2028 and U+2029 inside strings) and in
floats (``1``, not ``1.0``). Reading is typed: the caller says which fields an object may have and of what kind, and
gets all of them, absent ones as their kind's zero.

How reading treats what the standard leaves open (nsqd): keys match without regard to case, unknown ones are ignored,
the last of several equal keys wins, ``null`` is as good as absent, a number for an integer must be written as one and
must fit, what is not UTF-8 becomes U+FFFD. A byte order mark, anything behind the value and ``NaN`` are errors. A
difference: Go nests up to 10000 levels deep, here Python's recursion limit ends it, as an error like any other.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final

Fields = Mapping[str, "Kind"]
"""What an object may hold, by name in lower case."""


class JsonError(ValueError):
    """Not JSON, or not of the kind that was asked for."""


# --- Writing ----------------------------------------------------------------------------------------------------------

_ESCAPED_BY_GO: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_FIXED_POINT_FROM: Final = 1e-6
_FIXED_POINT_BELOW: Final = 1e21


def dumps(value: Any) -> str:
    """Compact JSON of dicts with string keys (in their order), lists, tuples, strings, numbers, booleans and None.

    Always encodable as UTF-8: half a surrogate pair becomes the replacement character. Raises ``ValueError`` for NaN
    and infinities, ``TypeError`` for other types.
    """
    pieces: list[str] = []
    _write(value, pieces.append)
    return "".join(pieces)


def _write(value: Any, emit: Callable[[str], None]) -> None:
    write_scalar = _SCALARS.get(type(value))
    if write_scalar is not None:
        emit(write_scalar(value))
    elif isinstance(value, dict):
        separator = "{"
        for key, member in value.items():
            emit(f"{separator}{_string(key)}:")
            _write(member, emit)
            separator = ","
        emit("}" if value else "{}")
    elif isinstance(value, list | tuple):
        separator = "["
        for member in value:
            emit(separator)
            _write(member, emit)
            separator = ","
        emit("]" if value else "[]")
    else:
        raise TypeError(f"no JSON for {value!r}")


def _string(text: str) -> str:
    return _ESCAPED_BY_GO.sub(_escape, encode_basestring(text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return r"\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"


def _float(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError(f"no JSON for {number}")
    shortest = repr(number)
    if number == 0 or _FIXED_POINT_FROM <= abs(number) < _FIXED_POINT_BELOW:
        return format(Decimal(shortest), "f").removesuffix(".0")
    # Python pads the exponent to two digits; Go does not when it is negative, and its positive ones have two anyway.
    return shortest.replace("e-0", "e-")


_SCALARS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: _string,
    bool: lambda value: "true" if value else "false",
    int: str,
    float: _float,
    type(None): lambda value: "null",
}

# --- Reading ----------------------------------------------------------------------------------------------------------

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_LONGEST_INT64: Final = 20  # characters, the sign included


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field's value must be: `zero` when it is absent or null, else what `read` makes of it or ``JsonError``."""

    zero: Any
    read: Callable[[Any], Any]


class _Members(tuple[tuple[str, Any], ...]):
    """An object as it was written, equal keys and all; arrays are lists."""


def loads_object(data: bytes, fields: Fields) -> dict[str, Any]:
    """The object in `data` (or ``null``, an object without fields) as a dict with exactly the given fields.

    Raises ``JsonError``, and nothing else, whatever the bytes are.
    """
    value = _decode(_decoder, data)
    return _read_object(_Members() if value is None else value, fields)


def loads_untyped(data: bytes) -> Any:
    """The value in `data`, for a reader that uses what makes sense in it and reports the rest.

    Objects are dicts: keys are in lower case, and a ``null`` does not replace a value given before. Strings may have
    half surrogate pairs. Raises ``JsonError``, and nothing else, whatever the bytes are.
    """
    return _decode(_untyped_decoder, data)


def _decode(decoder: json.JSONDecoder, data: bytes) -> Any:
    try:
        # Every byte that is not UTF-8 comes out as half a surrogate pair, and those become U+FFFD one by one, as in Go.
        return decoder.decode(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def list_of(member: Kind) -> Kind:
    """An array, read as a tuple; ``null`` members are the member's zero."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise JsonError("not an array")
        return tuple([member.zero if each is None else member.read(each) for each in value])

    return Kind((), read)


def object_of(fields: Fields) -> Kind:
    """An object inside another, read as a dict with exactly the given fields."""
    return Kind(_read_object(_Members(), fields), lambda value: _read_object(value, fields))


def _read_object(value: Any, fields: Fields) -> dict[str, Any]:
    if not isinstance(value, _Members):
        raise JsonError("not an object")
    result = {name: kind.zero for name, kind in fields.items()}
    for key, member in value:
        name = _without_case(key)
        if name in fields and member is not None:
            result[name] = fields[name].read(member)
    return result


def _as_dict(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, member in members:
        name = _without_case(key)
        if member is not None or name not in result:
            result[name] = member
    return result


def _without_case(key: str) -> str:
    # Two letters outside ASCII are a k and an s in another case: the Kelvin sign, which lower() knows, and the long s.
    return key.lower().replace("\u017f", "s")


def _integer_of(bits: int) -> Kind:
    limit = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:  # a bool is an int to isinstance
            raise JsonError(f"not an integer of {bits} bits")
        return value

    return Kind(0, read)


def _read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise JsonError("not a string")
    return _SURROGATES.sub("\ufffd", value)


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise JsonError("neither true nor false")
    return value


STRING: Final = Kind("", _read_string)
BOOL: Final = Kind(False, _read_bool)
INT64: Final = _integer_of(64)
INT32: Final = _integer_of(32)


def _integer(literal: str) -> int | float:
    # A float stands for "fits nowhere": converting a literal of a million digits would take long, or raise.
    return int(literal) if len(literal) <= _LONGEST_INT64 else math.inf


def _fraction(literal: str) -> float:
    # No kind reads a float, so its value is not worth computing.
    return math.nan


def _refuse_constant(literal: str) -> None:
    raise JsonError(f"{literal} is not JSON")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_integer, parse_float=_fraction, parse_constant=_refuse_constant
)
_untyped_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_as_dict, parse_int=_integer, parse_float=_fraction, parse_constant=_refuse_constant
)
