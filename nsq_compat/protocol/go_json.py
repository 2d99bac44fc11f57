"""JSON as Go reads and writes it, because NSQ's clients were written against Go's.

Writing differs from Python's in spaces, in escapes (``<``, ``>``, ``&``, U+2028 and U+2029 in strings) and in floats
(``1``, not ``1.0``). Reading is typed: the caller names the fields of an object and their kinds. The result has all of
them; an absent field is its kind's zero.

nsqd: keys match case-insensitively, unknown keys are ignored, the last of several equal keys wins, ``null`` means
absent, an integer must be written as one and must fit, bytes that are not UTF-8 become U+FFFD. A byte order mark,
data after the value and ``NaN`` are errors. One difference: Go allows 10000 levels of nesting; here the limit is
Python's recursion limit.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from json.encoder import encode_basestring
from typing import Any, Final

Fields = Mapping[str, "Kind"]
"""The fields of an object, by name in lower case."""


class Encoded(str):
    """JSON, which is written as it is."""

    __slots__ = ()


class JsonError(ValueError):
    """The input is not JSON, or a value is not of the expected kind."""


# --- Writing ----------------------------------------------------------------------------------------------------------

_ESCAPED_BY_GO: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_ESCAPES: Final = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"} | dict.fromkeys(
    range(0xD800, 0xE000), r"\ufffd"
)
_FIXED_POINT_FROM: Final = 1e-6
_FIXED_POINT_BELOW: Final = 1e21


def dumps(value: Any) -> str:
    """Compact JSON of dicts with string keys (in order), lists, tuples, strings, numbers, booleans, None and `Encoded`.

    A lone surrogate becomes U+FFFD, so the result can be encoded as UTF-8. Raises ``ValueError`` for NaN and
    infinities, ``TypeError`` for other types.
    """
    pieces: list[str] = []
    _write(value, pieces.append)
    return "".join(pieces)


def encode(message: Any) -> bytes:
    """The JSON object of a dataclass, with its fields in order."""
    return dumps(asdict(message)).encode("utf-8")


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
    encoded = encode_basestring(text)
    # Clients choose texts that /stats shows, so a text of nothing but these characters must be fast, too.
    return encoded.translate(_ESCAPES) if _ESCAPED_BY_GO.search(encoded) else encoded


def _float(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError(f"no JSON for {number}")
    shortest = repr(number)
    if number == 0 or _FIXED_POINT_FROM <= abs(number) < _FIXED_POINT_BELOW:
        if "e" not in shortest:
            return shortest.removesuffix(".0")
        from decimal import Decimal  # 0.4 MB, for numbers that are rare

        return format(Decimal(shortest), "f").removesuffix(".0")
    # Python pads the exponent to two digits. Go does not; positive exponents have two digits here anyway.
    return shortest.replace("e-0", "e-")


_SCALARS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: _string,
    bool: lambda value: "true" if value else "false",
    int: str,
    float: _float,
    type(None): lambda value: "null",
    Encoded: lambda value: value,
}

# --- Reading ----------------------------------------------------------------------------------------------------------

_SURROGATES: Final = re.compile("[\ud800-\udfff]+")
_MAX_INT64_LENGTH: Final = 20  # characters, including the sign


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a field: `zero` is its value if absent or null; `read` converts a value or raises ``JsonError``."""

    zero: Any
    read: Callable[[Any], Any]


class _Members(tuple[tuple[str, Any], ...]):
    """The members of an object in order, including repeated keys. Arrays are lists."""


def loads_object(data: bytes, fields: Fields) -> dict[str, Any]:
    """Parse an object into a dict with exactly the given fields. ``null`` is an object without members.

    Raises only ``JsonError``, for any bytes.
    """
    value = _decode(_decoder, data)
    return _read_object(_Members() if value is None else value, fields)


def loads_untyped(data: bytes) -> Any:
    """Parse any value, for callers that validate it themselves.

    Objects are dicts with keys in lower case; a ``null`` does not replace an earlier value. Strings may contain lone
    surrogates. Raises only ``JsonError``, for any bytes.
    """
    return _decode(_untyped_decoder, data)


def _decode(decoder: json.JSONDecoder, data: bytes) -> Any:
    try:
        # A byte that is not UTF-8 becomes a lone surrogate here, which later becomes one U+FFFD, as in Go.
        return decoder.decode(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def list_of(member: Kind) -> Kind:
    """An array, as a tuple; a ``null`` is the member's zero."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise JsonError("not an array")
        return tuple([member.zero if each is None else member.read(each) for each in value])

    return Kind((), read)


def object_of(fields: Fields) -> Kind:
    """A nested object, as a dict with exactly the given fields."""
    return Kind(_read_object(_Members(), fields), lambda value: _read_object(value, fields))


def lenient(kind: Kind) -> Kind:
    """As that kind; a value of another one is its zero."""

    def read(value: Any) -> Any:
        try:
            return kind.read(value)
        except JsonError:
            return kind.zero

    return Kind(kind.zero, read)


def _read_object(value: Any, fields: Fields) -> dict[str, Any]:
    if not isinstance(value, _Members):
        raise JsonError("not an object")
    result = {name: kind.zero for name, kind in fields.items()}
    for key, member in value:
        name = _without_case(key)
        if name in fields and member is not None:
            result[name] = fields[name].read(member)
        elif name in fields and fields[name].zero == ():
            result[name] = ()  # Go: null empties an array, and leaves any other value as it was
    return result


def _as_dict(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, member in members:
        name = _without_case(key)
        if member is not None or name not in result:
            result[name] = member
    return result


def _without_case(key: str) -> str:
    # Go also folds the Kelvin sign to k, as lower() does, and the long s to s.
    return key.lower().replace("\u017f", "s")


def _integer_of(bits: int) -> Kind:
    limit = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:  # isinstance accepts a bool
            raise JsonError(f"not an integer of {bits} bits")
        return value

    return Kind(0, read)


def _read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise JsonError("not a string")
    return _SURROGATES.sub(lambda run: "\ufffd" * (run.end() - run.start()), value)


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise JsonError("neither true nor false")
    return value


STRING: Final = Kind("", _read_string)
BOOL: Final = Kind(False, _read_bool)
INT64: Final = _integer_of(64)
INT32: Final = _integer_of(32)

_KINDS: Final = {str: STRING, bool: BOOL, int: INT64}


def fields_of(message: Any) -> dict[str, Kind]:
    """The fields of a dataclass of strings, booleans and integers."""
    return {field.name: _KINDS[field.type] for field in fields(message)}  # type: ignore[index]


def _integer(literal: str) -> int | float:
    # A float is refused by every kind. Converting a literal of a million digits would take long, or raise.
    return int(literal) if len(literal) <= _MAX_INT64_LENGTH else math.inf


def _refuse_constant(literal: str) -> None:
    raise JsonError(f"{literal} is not JSON")


def _decoder_of(make_object: Callable[[list[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    # No kind accepts a float, so its value does not matter.
    return json.JSONDecoder(
        object_pairs_hook=make_object,
        parse_int=_integer,
        parse_float=lambda literal: math.nan,
        parse_constant=_refuse_constant,
    )


_decoder: Final = _decoder_of(_Members)
_untyped_decoder: Final = _decoder_of(_as_dict)
