"""The JSON body of a request, read as Go's decoder reads it: the first value counts, what follows does not."""

import json
from typing import Any

from nsq_compat.web.responses import ApiError

_decoder = json.JSONDecoder()


def read_texts(body: bytes, *names: str) -> list[str]:
    """The values of these keys, all texts, empty where absent. Raises `ApiError` in the words of Go's decoder."""
    value = _first_value(body.decode("utf-8", "replace").lstrip(" \t\r\n"))
    if value is None:
        return [""] * len(names)
    if not isinstance(value, dict):
        fields = "; ".join(f'{name.title()} string "json:\\"{name}\\""' for name in names)
        raise ApiError(400, f"json: cannot unmarshal {_kind(value)} into Go value of type struct {{ {fields} }}")
    found = {key.lower(): each for key, each in value.items()}
    texts = []
    for name in names:
        text = found.get(name)
        if text is not None and not isinstance(text, str):
            raise ApiError(400, f"json: cannot unmarshal {_kind(text)} into Go struct field .{name} of type string")
        texts.append((text or "").encode("utf-8", "replace").decode("utf-8"))
    return texts


def _first_value(text: str) -> Any:
    if not text:
        raise ApiError(400, "EOF")
    try:
        return _decoder.raw_decode(text)[0]
    except RecursionError:
        raise ApiError(400, "exceeded max depth") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, _go_words(text, error)) from None


def _go_words(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :].lstrip(" \t\r\n")
    if not rest or any(word.startswith(rest) for word in ("true", "false", "null")):
        return "unexpected EOF"
    where = "object key string" if "property name" in error.msg else "value"
    return f"invalid character {rest[0]!r} looking for beginning of {where}"


def _kind(value: object) -> str:
    kinds = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "value")
