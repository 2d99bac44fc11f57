"""Typed values out of untrusted JSON. Each function returns the type it is named after, or raises `InvalidAnswer`.

As in Go, None (absent or ``null``) is the zero value of the type.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MAX_VALUES: Final = 4_000_000
"""Answers of nsqd with 32 MiB have three million. Empty objects take 24 times their size while they are parsed."""
_has_surrogate: Final = re.compile(rb"\\u[dD]").search
"""Whether JSON may have an escaped surrogate; most are halves of pairs."""


class UpstreamError(Exception):
    """A daemon sent no usable answer. The text has the reason, in NSQ's words where NSQ has them."""


class InvalidAnswer(UpstreamError):
    """Not JSON, or a value of the wrong type."""


def load(data: bytes) -> Any:
    """The JSON value in `data`. Raises only `InvalidAnswer`."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise InvalidAnswer(f"invalid JSON: more than {_MAX_VALUES:,} values")
    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        if _has_surrogate(data):
            # A lone surrogate cannot be encoded, so it would fail the page or request that contains it.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"invalid JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def mapping(value: object) -> Mapping[str, Any]:
    return _checked(value, dict, "not an object")


def text(value: object) -> str:
    # A lone surrogate cannot be encoded.
    return _checked(value, str, "not a string").encode("utf-8", "replace").decode("utf-8")


def boolean(value: object) -> bool:
    return _checked(value, bool, "neither true nor false")


def array(read: Callable[[object], T], value: object) -> list[T]:
    return [read(member) for member in _checked(value, list, "not an array")]


def _checked(value: object, kind: type[T], problem: str) -> T:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidAnswer(f"invalid answer: {problem}")
    return value


def integer(value: object) -> int:
    if value is None:
        return 0
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise InvalidAnswer("invalid answer: not an integer")
    return value


def number(value: object) -> float:
    if value is None:
        return 0.0
    # The limit also excludes NaN, infinities, and integers that are too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise InvalidAnswer("invalid answer: not a number")
    return float(value)


def record(kind: Callable[..., T], answer: Mapping[str, Any], **others: Any) -> T:
    """A dataclass from an object of JSON: its numbers, strings and booleans by name, and these other fields."""
    simple = {name: read(answer[name]) for name, read in _simple_fields(kind) if name in answer}
    return kind(**{**simple, **others})


@cache
def _simple_fields(kind: Any) -> list[tuple[str, Callable[[object], Any]]]:
    readers: dict[Any, Callable[[object], Any]] = {int: integer, str: text, bool: boolean}
    return [(column.name, readers[column.type]) for column in fields(kind) if column.type in readers]
