"""Addresses that other daemons announce: which text is a host, and which number a port."""

import ipaddress
import re
from typing import Final

from nsq_compat.protocol.quoting import quote

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


def problem_with(host: object, **ports: object) -> str:
    """Why an announced address cannot be used, in a few printable characters; empty for one that can be."""
    if not is_host(host):
        return f"invalid broadcast address {shown(host)}"
    return next((f"invalid {name} port {shown(port)}" for name, port in ports.items() if not is_port(port)), "")


def shown(value: object) -> str:
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
