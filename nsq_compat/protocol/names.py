"""Which topic and channel names are allowed.

One rule for both: letters, digits, ``.``, ``_`` and ``-``, then perhaps ``#ephemeral``; 1 to 64 bytes in all.
A name that passes is ASCII, so everything above this layer may hold it as ``str``.
"""

import ipaddress
import re
from typing import Final

from nsq_compat.protocol.errors import quote

MAX_NAME_LENGTH: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"

_RULE: Final = rf"[.a-zA-Z0-9_-]+(?:{EPHEMERAL_SUFFIX})?"
# Called for every PUB line: the bound methods save an attribute lookup each time. fullmatch, because "$" would also
# accept a name with a newline behind it.
_matches_text: Final = re.compile(_RULE).fullmatch
_matches_bytes: Final = re.compile(_RULE.encode("ascii")).fullmatch


def is_valid_name(name: bytes | str) -> bool:
    """True for a legal topic or channel name, its length counted with the ``#ephemeral`` suffix."""
    if len(name) > MAX_NAME_LENGTH:
        return False
    if isinstance(name, bytes):
        return _matches_bytes(name) is not None
    return _matches_text(name) is not None


def is_ephemeral(name: str) -> bool:
    """True when a topic or channel of this (valid) name lives only as long as it is used."""
    return name.endswith(EPHEMERAL_SUFFIX)


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_LARGEST_PORT: Final = 65535
_LONGEST_SHOWN: Final = 60


def is_host(text: object) -> bool:
    """Whether it is a host name or an IP address, and cannot mean anything else inside a URL."""
    if not isinstance(text, str):
        return False
    return _is_ipv6(text) if ":" in text else _HOST_NAME.fullmatch(text) is not None


def is_port(number: object) -> bool:
    """Whether a connection can be made to it; 0 is no such port."""
    return type(number) is int and 0 < number <= _LARGEST_PORT


def address_error(host: object, **ports: object) -> str:
    """Why an announced address cannot be used, in a few printable characters; empty for one that can be."""
    if not is_host(host):
        return f"invalid broadcast address {printable(host)}"
    return next((f"invalid {name} port {printable(port)}" for name, port in ports.items() if not is_port(port)), "")


def printable(value: object) -> str:
    """What another daemon said, for a log line or an error text: quoted, printable and short."""
    text = str(value)
    cut = "..." if len(text) > _LONGEST_SHOWN else ""
    return quote(text[:_LONGEST_SHOWN].encode("utf-8", "replace")) + cut


def canonical_host(host: str) -> str:
    """One spelling for all spellings of a host: lower case, no trailing dot, IPv6 in its shortest form."""
    if _is_ipv6(host):
        return str(ipaddress.IPv6Address(host)).lower()
    return host.lower().removesuffix(".")


def _is_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    # A zone ("%eth0") may be any text.
    return address.scope_id is None or _HOST_NAME.fullmatch(address.scope_id) is not None
