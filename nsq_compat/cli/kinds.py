"""Kinds of option values: how each is read from the command line, converted from TOML and printed in the usage text.

Values are plain Python: durations are integer nanoseconds, lists are tuples, names (log levels, TLS versions) are
NSQ's numbers.

Numbers and booleans on the command line are those of Go's `strconv`. Python's own `int()` and `float()` also accept
surrounding blanks and the digits of other scripts, and refuse octal numbers written with a bare leading zero. The texts
of ValueError are those that Go's flag package prints.

The config file is read more strictly than NSQ does where its leniency only hides mistakes: see "Config file" in
docs/differences.md. Quoted integers and booleans are accepted, as in NSQ.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from nsq_compat.cli.logs import LEVEL_NAMES, parse_log_level
from nsq_compat.protocol.durations import MILLISECOND, format_duration, parse_duration
from nsq_compat.protocol.errors import quote

T = TypeVar("T")

TLS_NOT_REQUIRED: Final = 0
TLS_REQUIRED: Final = 1
TLS_REQUIRED_EXCEPT_HTTP: Final = 2

TLS_VERSIONS: Final = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}
"""Versions by name, and their numbers on the wire."""


class OptionError(Exception):
    """An option, or a config file, that the program cannot start with. The text is for the operator; exit code 1."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How values of one type are written. `parse` and `convert` raise ValueError with the reason."""

    type_name: str
    """Printed after the flag in the usage text. Empty for a flag that alone means true; a value follows `=`."""
    parse: Callable[[str, T], T]
    """Returns the new value, from the flag's text and the previous value: the default, or that of earlier flags."""
    expected: str
    """What the config file may contain, for error texts."""
    readers: Mapping[type, Callable[[Any], T]]
    """Converts a value from tomllib, by its exact type: True is not an integer, 1 not a boolean."""
    show: Callable[[T], str]
    """Formats a default for the usage text."""
    unset: str
    """The result of `show` for the type's empty value. Such a default is not mentioned."""
    named: bool = False
    """The value is one of a few names, which NSQ checks in the config file even when a flag overrides them."""

    def convert(self, value: Any) -> T:
        """Convert a value from tomllib."""
        reader = self.readers.get(type(value))
        if reader is None:
            raise ValueError(f"expected {self.expected}, got {toml_text(value)}")
        try:
            return reader(value)
        except ValueError as error:
            raise ValueError(f"expected {self.expected}, got {toml_text(value)}: {error}") from None


# --- Go's literals ----------------------------------------------------------------------------------------------------

SYNTAX_ERROR = "parse error"
RANGE_ERROR = "value out of range"

_LONGEST_INTEGER = 200  # 64 binary digits, an underscore before each, and leading zeros to spare

_INTEGER = re.compile(
    r"(?P<sign>[+-]?)(?:"
    r"0[xX](?P<base16>(?:_?[0-9a-fA-F])+)"
    r"|0[bB](?P<base2>(?:_?[01])+)"
    r"|0[oO]?(?P<base8>(?:_?[0-7])+)"
    r"|(?P<base10>0|[1-9](?:_?[0-9])*)"
    r")"
)
_DECIMAL = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"(?i:nan)|[+-]?(?:"
    r"(?P<decimal>(?:[0-9](?:_?[0-9])*\.?(?:[0-9](?:_?[0-9])*)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9](?:_?[0-9])*)?)"
    r"|(?P<hexadecimal>0[xX](?:(?:_?[0-9a-fA-F])+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)"
    r"|(?i:inf|infinity)"
    r")"
)
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def parse_int(text: str) -> int:
    """A signed 64-bit integer with an optional prefix for the base and underscores: `0x1f`, `1_000`."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(SYNTAX_ERROR)
    base, digits = next((name, digits) for name, digits in match.groupdict().items() if digits and name != "sign")
    return _bounded(match["sign"] + digits.replace("_", ""), int(base.removeprefix("base")))


def parse_decimal(text: str) -> int:
    """A signed 64-bit integer of decimal digits only, as a quoted number in a config file is read."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(SYNTAX_ERROR)
    return _bounded(text, 10)


def _bounded(digits: str, base: int) -> int:
    # Python refuses to convert thousands of digits, with an error text of its own.
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(RANGE_ERROR)
    return in_int64(int(digits, base))


def in_int64(value: int) -> int:
    """The value itself; ValueError when it does not fit 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(RANGE_ERROR)
    return value


def parse_float(text: str) -> float:
    """A 64-bit float: decimal, hexadecimal (`0x1p-2`), `inf` or `nan`."""
    match = _FLOAT.fullmatch(text)
    if match is None:
        raise ValueError(SYNTAX_ERROR)
    try:
        value = float.fromhex(text.replace("_", "")) if match["hexadecimal"] else float(text)
    except OverflowError:
        raise ValueError(RANGE_ERROR) from None
    if match["decimal"] and math.isinf(value):
        raise ValueError(RANGE_ERROR)
    return value


def parse_bool(text: str) -> bool:
    """One of Go's twelve spellings."""
    if text not in _TRUE + _FALSE:
        raise ValueError(SYNTAX_ERROR)
    return text in _TRUE


# --- Kinds ------------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Quote a word of the command line, which may contain any bytes, for an error text."""
    return quote(text.encode("utf-8", "surrogateescape"))


def toml_text(value: object) -> str:
    """Format a value from a config file on one line, for an error text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _last(read: Callable[[str], T]) -> Callable[[str, T], T]:
    """A `Kind.parse` for scalars: the last occurrence of the flag wins."""
    return lambda text, _so_far: read(text)


STRING: Final[Kind[str]] = Kind("string", _last(str), "a string", {str: str}, show=quoted, unset='""')


def choice(*names: str) -> Kind[str]:
    """The kind of a value that is one of these words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return replace(STRING, parse=_last(read), readers={str: read}, named=True)


INTEGER: Final[Kind[int]] = Kind(
    "int", _last(parse_int), "an integer", {int: in_int64, str: parse_decimal}, show=str, unset="0"
)

FLOAT: Final[Kind[float]] = Kind(
    "float",
    _last(parse_float),
    "a number",
    {int: lambda value: float(in_int64(value)), float: float},
    show=lambda value: f"{value:g}",
    unset="0",
)

BOOLEAN: Final[Kind[bool]] = Kind(
    "",
    _last(parse_bool),
    "true or false",
    {bool: bool, str: parse_bool},
    show=lambda value: "true" if value else "false",
    unset="false",
)


# --- durations ------------------------------------------------------------------------------------------------------


def _duration_flag(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(SYNTAX_ERROR) from None


DURATION: Final[Kind[int]] = Kind(
    "duration",
    _last(_duration_flag),
    'a duration such as "1m30s" or an integer of milliseconds',
    {str: parse_duration, int: lambda ms: in_int64(ms * MILLISECOND)},
    show=format_duration,
    unset="0s",
)


# --- lists ----------------------------------------------------------------------------------------------------------


def _array(element: str, types: tuple[type, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    def read(values: list[Any]) -> tuple[Any, ...]:
        for value in values:
            if type(value) not in types:
                raise ValueError(f"{toml_text(value)} is not {element}")
        return tuple(float(in_int64(value)) if type(value) is int else value for value in values)

    return read


def _floats_flag(text: str, so_far: tuple[float, ...]) -> tuple[float, ...]:
    found = list(so_far)
    for element in text.split(","):
        try:
            found.append(parse_float(element))
        except ValueError:
            # nsqd: this error alone ends with exit code 1 and without the usage text.
            raise OptionError(f"Could not parse: {element}") from None
    return tuple(sorted(found, reverse=True))


STRINGS: Final[Kind[tuple[str, ...]]] = Kind(
    "value",
    lambda text, so_far: (*so_far, text),  # nsqd: a flag's value is one element, commas and all
    "an array of strings or one comma-separated string",
    {list: _array("a string", (str,)), str: lambda text: tuple(text.split(","))},
    show=",".join,
    unset="",
)

FLOATS: Final[Kind[tuple[float, ...]]] = Kind(
    "value",
    _floats_flag,
    "an array of numbers or one comma-separated string",
    {
        list: _array("a number", (int, float)),
        str: lambda text: tuple(parse_float(element.strip()) for element in text.split(",")),
    },
    show=lambda values: ",".join(f"{value:f}" for value in values),
    unset="",
)


# --- names ----------------------------------------------------------------------------------------------------------


def _tls_required(text: str) -> int:
    text = text.lower()
    if text == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    try:
        return TLS_REQUIRED if parse_bool(text) else TLS_NOT_REQUIRED
    except ValueError:
        raise ValueError(f"strconv.ParseBool: parsing {quoted(text)}: invalid syntax") from None


def _tls_min_version(text: str, so_far: int) -> int:
    name = text.lower()
    if name and name not in TLS_VERSIONS:
        raise ValueError(f"unknown tlsVersionOption {quoted(name)}")
    return TLS_VERSIONS.get(name, so_far)


LOG_LEVEL: Final[Kind[int]] = Kind(
    "value",
    _last(parse_log_level),
    "a log level",
    {str: parse_log_level},
    show=LEVEL_NAMES.__getitem__,
    unset="invalid",
    named=True,
)

TLS_REQUIREMENT: Final[Kind[int]] = Kind(
    "",
    _last(_tls_required),
    "true, false or tcp-https",
    {str: _tls_required, bool: int, int: lambda value: _tls_required(str(value))},
    show=str,
    unset="0",
    named=True,
)

TLS_MIN_VERSION: Final[Kind[int]] = Kind(
    "value",
    _tls_min_version,
    "a TLS version",
    # nsqd: an empty name means the default, which is the lowest version.
    {str: lambda text: _tls_min_version(text, TLS_VERSIONS["tls1.0"])},
    show=lambda number: next((name for name, version in TLS_VERSIONS.items() if version == number), str(number)),
    unset="0",
    named=True,
)
