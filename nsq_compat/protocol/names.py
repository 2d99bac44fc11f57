"""Valid names of topics and channels, and valid addresses that other daemons announce.

Topics and channels have the same rule: letters, digits, ``.``, ``_`` and ``-``, then optionally ``#ephemeral``; 1 to 64
bytes in total. A valid name is ASCII, so the layers above use ``str``.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Final

from nsq_compat.protocol.errors import quote

MAX_NAME_LENGTH: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"

_RULE: Final = rf"[.a-zA-Z0-9_-]+(?:{EPHEMERAL_SUFFIX})?"
# Bound methods save an attribute lookup per call. `fullmatch`, because "$" also matches before a trailing newline.
_matches_text: Final = re.compile(_RULE).fullmatch
_matches_bytes: Final = re.compile(_RULE.encode("ascii")).fullmatch


def is_valid_name(name: bytes | str) -> bool:
    """Whether it is a valid topic or channel name."""
    found = _matches_bytes(name) if isinstance(name, bytes) else _matches_text(name)
    return found is not None and len(name) <= MAX_NAME_LENGTH


def is_ephemeral(name: str) -> bool:
    """Whether a topic or channel with this (valid) name is deleted when it is no longer used."""
    return name.endswith(EPHEMERAL_SUFFIX)


# --- Addresses --------------------------------------------------------------------------------------------------------

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_MAX_PORT: Final = 65535
_MAX_PRINTED: Final = 60


def is_host(text: object) -> bool:
    """Whether it is a host name or an IP address, and safe to use in a URL."""
    if not isinstance(text, str):
        return False
    return _is_ipv6(text) if ":" in text else _HOST_NAME.fullmatch(text) is not None


def is_port(number: object) -> bool:
    """Whether it is a port from 1 to 65535."""
    return type(number) is int and 0 < number <= _MAX_PORT


def address_error(host: object, **ports: object) -> str:
    """The reason why an announced address is invalid, in a few printable characters; empty if it is valid."""
    if not is_host(host):
        return f"invalid broadcast address {printable(host)}"
    return next((f"invalid {name} port {printable(port)}" for name, port in ports.items() if not is_port(port)), "")


def printable(value: object) -> str:
    """A value from another daemon for a log line or an error text: quoted and at most 60 characters."""
    text = str(value)
    cut = "..." if len(text) > _MAX_PRINTED else ""
    return quote(text[:_MAX_PRINTED].encode("utf-8", "replace")) + cut


def canonical_host(host: str) -> str:
    """A host's canonical spelling: lower case, no trailing dot, IPv6 in its shortest form."""
    if _is_ipv6(host):
        return str(ipaddress.IPv6Address(host)).lower()
    return host.lower().removesuffix(".")


@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    """The network of 64 bits of an IPv6 address, because a client may use any address of it; else the same text.

    That is an IPv4 address, or a name such as ``tls://host`` of an nsqlookupd; "" for a unix socket.
    """
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return host


def network_of_peer(peer: str) -> str:
    """`network_of` the host of ``host:port``, or of ``[host]:port``; "" for a unix socket (``@``)."""
    return network_of(peer.rpartition(":")[0].strip("[]"))


def _is_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    # `ipaddress` accepts any text as a zone ("%eth0").
    return address.scope_id is None or _HOST_NAME.fullmatch(address.scope_id) is not None
