"""Durations in Go's syntax (`1h30m`, `250ms`), as integer nanoseconds.

Syntax, rounding and error texts are those of Go's `time.ParseDuration` and `Duration.String`, because flags, config
files and log lines use them. Elsewhere a duration is float seconds: `seconds()` converts.
"""

import re
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

_MAX_INT64 = 2**63 - 1
_UNITS = {
    "ns": 1,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,  # micro sign
    "\u03bcs": MICROSECOND,  # Greek letter mu
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_TERM = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[^.0-9]*)")


def seconds(ns: int) -> float:
    """Integer nanoseconds, as in options, to float seconds."""
    return ns / SECOND


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration such as `-1.5h`, `1h2m3s`, `.5s` or a bare `0`. Raises ValueError with Go's text."""
    negative = text.startswith("-")
    terms = text[1:] if text[:1] in ("-", "+") else text
    if terms == "0":
        return 0
    total = 0
    position = 0
    while position < len(terms) or not terms:
        term = _TERM.match(terms, position)
        if term is None or not (term["whole"] or term["fraction"]):
            raise ValueError(f"time: invalid duration {_quote(text)}")
        total += _nanoseconds(term, text)
        position = term.end()
        if total > _MAX_INT64 + negative:
            raise ValueError(f"time: invalid duration {_quote(text)}")
    return -total if negative else total


def _nanoseconds(term: re.Match[str], text: str) -> int:
    name = term["unit"]
    if not name:
        raise ValueError(f"time: missing unit in duration {_quote(text)}")
    if name not in _UNITS:
        raise ValueError(f"time: unknown unit {_quote(name)} in duration {_quote(text)}")
    unit = _UNITS[name]
    # nsqd: a fraction is scaled in floating point and truncated.
    numerator, denominator = _fraction(term["fraction"] or "")
    return int(term["whole"] or 0) * unit + int(numerator * (unit / denominator))


def _fraction(digits: str) -> tuple[int, float]:
    """Digits after the point as a ratio; digits beyond 64 bits are ignored."""
    numerator, denominator = 0, 1.0
    for digit in digits:
        longer = 10 * numerator + int(digit)
        if longer > _MAX_INT64 + 1:
            break
        numerator, denominator = longer, 10 * denominator
    return numerator, denominator


def format_duration(ns: int) -> str:
    """The duration as Go prints it: `1m0s`, `250ms`, `1.5s`, `0s`."""
    sign = "-" if ns < 0 else ""
    ns = abs(ns)
    if ns == 0:
        return "0s"
    for unit, name in ((MICROSECOND, "ns"), (MILLISECOND, "\u00b5s"), (SECOND, "ms")):
        if ns < unit:
            return f"{sign}{_decimal(ns, unit // 1000)}{name}"
    hours, rest = divmod(ns, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{prefix}{_decimal(rest, SECOND)}s"


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = f"{fraction:0{len(str(unit)) - 1}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def _quote(text: str) -> str:
    """Quote for an error text: every byte that is not printable ASCII becomes \\xNN."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    raw = escaped.encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(byte) if 0x20 <= byte <= 0x7F else f"\\x{byte:02x}" for byte in raw) + '"'
