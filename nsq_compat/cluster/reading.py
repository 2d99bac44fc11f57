"""Values out of JSON whose sender is not trusted: each reader gives the kind it is named after or raises `BadAnswer`.

Absent and ``null`` are the kind's zero, as in Go; what is unknown is ignored.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class BadAnswer(ValueError):
    """Not JSON, or not of the form that was asked for."""


def load(data: bytes) -> Any:
    """The JSON value in `data`. Raises `BadAnswer`, and nothing else, whatever the bytes are."""
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"invalid JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnswer("invalid answer: not an object")
    return value


def text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer("invalid answer: not a string")
    # Half a surrogate pair could not be sent on.
    return value.encode("utf-8", "replace").decode("utf-8")


def integer(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise BadAnswer("invalid answer: not an integer")
    return value


def number(value: object) -> float:
    if value is None:
        return 0.0
    # An integer of a thousand digits is none either, and would not even become a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise BadAnswer("invalid answer: not a number")
    return float(value) if math.isfinite(value) else 0.0


def boolean(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadAnswer("invalid answer: neither true nor false")
    return value


def each(read: Callable[[object], T], value: object) -> list[T]:
    """An array, each member read by `read`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAnswer("invalid answer: not an array")
    return [read(member) for member in value]
