"""Durations and moments as Go prints them, which is how /stats and the access log show them."""

from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1_000_000_000
_SMALL_UNITS: Final = ((1_000, "ns", 0), (1_000_000, "\u00b5s", 3), (_SECOND, "ms", 6))


def format_duration(ns: int) -> str:
    """``931ns``, ``2.034µs``, ``1.5s``, ``2m7.687255628s``."""
    if ns < 0:
        return "-" + format_duration(-ns)
    if ns == 0:
        return "0s"
    for limit, unit, places in _SMALL_UNITS:
        if ns < limit:
            return _decimal(ns, places) + unit
    minutes, rest = divmod(ns, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{_decimal(rest, 9)}s"


def _decimal(value: int, places: int) -> str:
    whole, fraction = divmod(value, 10**places)
    digits = f"{fraction:0{places}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def format_moment(unix_seconds: float) -> str:
    """RFC 3339 in whole seconds and the local zone; UTC is ``Z``."""
    moment = datetime.fromtimestamp(int(unix_seconds), UTC).astimezone()
    text = moment.isoformat(timespec="seconds")
    return text[:-6] + "Z" if text.endswith("+00:00") else text
