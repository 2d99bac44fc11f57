"""Integers, floats and booleans spelled as Go's `strconv` reads them.

Python's own `int()` and `float()` differ in small ways that matter to a drop-in: they accept surrounding blanks and
the digits of other scripts, and refuse octal numbers written with a bare leading zero. ValueError texts are those
Go's flag package prints.
"""

import math
import re

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
_BOOLEANS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def parse_int(text: str) -> int:
    """A signed 64-bit integer whose prefix gives its base, with underscores between digits: `0x1f`, `1_000`."""
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
    # Python refuses to convert thousands of digits, in words of its own.
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
    """One of twelve spellings: `1 t T true TRUE True` and `0 f F false FALSE False`."""
    try:
        return _BOOLEANS[text]
    except KeyError:
        raise ValueError(SYNTAX_ERROR) from None
