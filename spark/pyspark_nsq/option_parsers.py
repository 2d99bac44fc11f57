"""Parsers of option values: each function takes the text and returns the value.

They raise ``ValueError`` with the expected form, worded to follow "must be".
"""

from collections.abc import Callable

from nsq_compat.protocol.names import is_ephemeral, is_valid_name


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


def topics(raw: str) -> tuple[str, ...]:
    topics = _list(raw)
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


def channel(raw: str) -> str:
    if not is_valid_name(raw):
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


def http_addresses(raw: str) -> tuple[str, ...]:
    return addresses(",".join(each.removeprefix("http://").rstrip("/") for each in _list(raw)))
