"""What the text of an option may be: each function takes it and returns its value.

They raise ``ValueError`` with what it should have been, to be read behind "must be".
"""

from collections.abc import Callable

from nsq_compat.protocol.names import is_ephemeral, is_valid_name


def text(raw: str) -> str:
    return raw


def flag(raw: str) -> bool:
    flags = {"true": True, "false": False, "1": True, "0": False}
    if raw.lower() not in flags:
        raise ValueError("true or false")
    return flags[raw.lower()]


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def read(raw: str) -> int:
        if not raw.strip().isdigit() or not least <= int(raw) <= most:
            raise ValueError(f"a whole number, {least} to {most}")
        return int(raw)

    return read


def milliseconds(least: int, most: int = 2**31 - 1) -> Callable[[str], float]:
    def read(raw: str) -> float:
        if not raw.strip().isdigit() or not least <= int(raw) <= most:
            raise ValueError(f"milliseconds, {least} to {most}, without a unit")
        return int(raw) / 1000

    return read


def one_of(*words: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw.lower() not in words:
            raise ValueError(" or ".join(words))
        return raw.lower()

    return read


def keeping(raw: str) -> float | None:
    """None: for ever."""
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
        raise ValueError("topics, several with commas: letters, digits, '.', '_' and '-', up to 64")
    if any(map(is_ephemeral, topics)):
        raise ValueError(
            "topics that are kept: between two batches nobody is connected, nsqd would delete #ephemeral ones"
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
            "a channel that is kept: between two batches nobody is connected, nsqd would delete an #ephemeral one"
        )
    return raw


def addresses(raw: str) -> tuple[str, ...]:
    addresses = _list(raw)
    for each in addresses:
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("host:port, several with commas")
    return addresses


def http_addresses(raw: str) -> tuple[str, ...]:
    return addresses(",".join(each.removeprefix("http://").rstrip("/") for each in _list(raw)))
