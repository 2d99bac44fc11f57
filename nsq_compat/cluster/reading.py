"""Typed values out of untrusted JSON. Each function returns the type it is named after, or raises `InvalidAnswer`.

As in Go, None (absent or ``null``) is the zero value of the type.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class InvalidAnswer(ValueError):
    """Not JSON, or a value of the wrong type."""


def load(data: bytes) -> Any:
    """The JSON value in `data`. Raises only `InvalidAnswer`."""
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"invalid JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidAnswer("invalid answer: not an object")
    return value


def text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidAnswer("invalid answer: not a string")
    # A lone surrogate cannot be encoded.
    return value.encode("utf-8", "replace").decode("utf-8")


def integer(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise InvalidAnswer("invalid answer: not an integer")
    return value


def number(value: object) -> float:
    if value is None:
        return 0.0
    # The limit also excludes integers that are too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise InvalidAnswer("invalid answer: not a number")
    return float(value) if math.isfinite(value) else 0.0


def boolean(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidAnswer("invalid answer: neither true nor false")
    return value


def array(read: Callable[[object], T], value: object) -> list[T]:
    """An array. `read` reads its members."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidAnswer("invalid answer: not an array")
    return [read(member) for member in value]
