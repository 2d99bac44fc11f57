"""Parsers of option values: each function takes the text and returns the value.

They raise ``ValueError`` with the expected form, worded to follow "must be".
"""

import json
import re
from collections.abc import Callable
from typing import Final

from nsq_compat.protocol.durations import parse_duration
from nsq_compat.protocol.names import is_ephemeral, is_valid_name

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""In JSON, as Spark's Kafka source has them."""

Positions = dict[str, dict[str, int]]
"""The offset of the next message, by topic and by the HTTP address of an nsqd."""


def text(raw: str) -> str:
    return raw


def boolean(raw: str) -> bool:
    flags = {"true": True, "false": False, "1": True, "0": False}
    if raw.lower() not in flags:
        raise ValueError("true or false")
    return flags[raw.lower()]


def integer(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], int]:
    def read(raw: str) -> int:
        if not raw.strip().isdigit() or not minimum <= int(raw) <= maximum:
            raise ValueError(f"an integer, {minimum} to {maximum}")
        return int(raw)

    return read


def milliseconds(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], float]:
    def read(raw: str) -> float:
        if not raw.strip().isdigit() or not minimum <= int(raw) <= maximum:
            raise ValueError(f"milliseconds, {minimum} to {maximum}, without a unit")
        return int(raw) / 1000

    return read


def duration(raw: str) -> float:
    """Seconds."""
    try:
        nanoseconds = parse_duration(raw)
    except ValueError:
        nanoseconds = -1
    if nanoseconds < 0:
        raise ValueError("a time with a unit, such as 15m or 90s")
    return nanoseconds / 1e9


def choice(*words: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw.lower() not in words:
            raise ValueError(" or ".join(words))
        return raw.lower()

    return read


def retention(raw: str) -> float | None:
    """Seconds; None for ever."""
    if raw.lower() == "true":
        return None
    if not raw.isdigit():
        raise ValueError("true, for ever, or milliseconds without a unit")
    return int(raw) / 1000


def _list(raw: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece for piece in (each.strip() for each in raw.split(",")) if piece))


def name(raw: str) -> str:
    """Empty without a value."""
    if raw and not is_valid_name(raw):
        raise ValueError("a name: letters, digits, '.', '_' and '-', up to 64")
    return raw


def names(raw: str) -> tuple[str, ...]:
    return _list(raw)


def topics(raw: str) -> tuple[str, ...]:
    """Empty without a value."""
    topics = _list(raw)
    if not raw:
        return ()
    if not topics or not all(map(is_valid_name, topics)):
        raise ValueError("topics, separated by commas: letters, digits, '.', '_' and '-', up to 64")
    if any(map(is_ephemeral, topics)):
        raise ValueError(
            "topics without #ephemeral: nsqd would delete them between two batches, when no consumer is connected"
        )
    return topics


def topic(raw: str) -> str:
    if raw and not is_valid_name(raw):
        raise ValueError("a topic: letters, digits, '.', '_' and '-', up to 64")
    return raw


def pattern(raw: str) -> re.Pattern[str] | None:
    if not raw:
        return None
    try:
        return re.compile(raw)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


def channel(raw: str) -> str:
    """Empty without a value."""
    if raw and not is_valid_name(raw):
        raise ValueError("a channel: letters, digits, '.', '_' and '-', up to 64")
    if is_ephemeral(raw):
        raise ValueError(
            "a channel without #ephemeral: nsqd would delete it between two batches, when no consumer is connected"
        )
    return raw


def addresses(raw: str) -> tuple[str, ...]:
    addresses = _list(raw)
    for each in addresses:
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("host:port, or several, separated by commas")
    return addresses


def timestamp(raw: str) -> int | None:
    """Milliseconds; None without a value."""
    if not raw:
        return None
    if not raw.isdigit() or len(raw) > 16:
        raise ValueError("milliseconds since 1970")
    return int(raw)


def starting_offsets(raw: str) -> str | Positions:
    """`EARLIEST`, `LATEST`, an offset for each nsqd of each topic, or empty without a value."""
    return _offsets(raw, (EARLIEST, LATEST), EARLIEST_OFFSET)


def ending_offsets(raw: str) -> str | Positions:
    return _offsets(raw, (LATEST,), LATEST_OFFSET)


def _offsets(raw: str, words: tuple[str, ...], least: int) -> str | Positions:
    if not raw or raw.lower() in words:
        return raw.lower()
    try:
        positions = json.loads(raw)
        whole = [(name, at) for nsqds in positions.values() for name, at in nsqds.items()]
    except (ValueError, AttributeError):
        whole = [("", None)]
    if not all(type(at) is int and at >= least and daemon_http_addresses(name) == (name,) for name, at in whole):
        form = '{"topic": {"host:4151": 17}}'
        raise ValueError(f"{' or '.join(words)}, or JSON of offsets from {least} on, such as {form}")
    return {topic: dict(nsqds) for topic, nsqds in positions.items()}


def http_addresses(raw: str) -> tuple[str, ...]:
    return addresses(",".join(each.removeprefix("http://").rstrip("/") for each in _list(raw)))


def daemon_http_addresses(raw: str) -> tuple[str, ...]:
    """As `http_addresses`; those for TLS keep their https://."""
    found: list[str] = []
    for each in _list(raw):
        address = each.removeprefix("https://")
        found += [each[: len(each) - len(address)] + plain for plain in http_addresses(address or each)]
    return tuple(dict.fromkeys(found))
