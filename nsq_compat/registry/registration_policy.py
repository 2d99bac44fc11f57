"""Which connections may register an nsqd, and under which broadcast addresses.

Consumers connect to the broadcast addresses that nsqlookupd lists, so a connection that may claim any address can
direct the consumers of a topic to itself. `RegistrationPolicy.refusal` is the only check. It is made at IDENTIFY,
before which nothing can be registered.

A rule is ``NAME=PATTERN``: a certificate with this name (its common name, or a DNS name among its alternative names)
may claim the broadcast addresses that match the pattern. In both, ``*`` stands for one or more characters other than a
dot, and ``**`` for any. ``{name}`` in a pattern stands for the certificate's own name. A pattern that ends with ``.*``
or ``.**`` is one of IP addresses: otherwise ``10.0.0.*`` would match the name ``10.0.0.example``.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from nsq_compat.protocol.names import address_error, canonical_host, printable

_WILDCARDS: Final = re.compile(r"(\*\*|\*)")
_NUMBER: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")
"""What the C library takes for an IPv4 address: parts that it completes, octal and hexadecimal ones."""
_OWN_NAME: Final = "{name}"
_ANY_END: Final = (".*", ".**")
_MAX_NAMES_SHOWN: Final = 3

_Matches = Callable[[str], object]


class RegistrationPolicy:
    """`rules` are of the form ``NAME=PATTERN``; without any, every broadcast address may be claimed.

    `refuse_token` returns why a token, empty without one, does not permit an address.

    Raises ``ValueError`` for a rule that has another form.
    """

    def __init__(
        self,
        rules: Iterable[str] = (),
        *,
        tls_required: bool = False,
        refuse_token: Callable[[bytes, str], str] = lambda token, address: "",
    ) -> None:
        self.refused = 0
        """The number of refusals."""
        self._tls_required = tls_required
        self.refuse_token = refuse_token
        self._rules = [_rule(text) for text in rules]

    def refusal(self, broadcast_address: str, *, tls: bool, names: Sequence[str], token: bytes = b"") -> str:
        """Why a connection may not register this broadcast address; empty if it may.

        `names` are those of the client's certificate, which has been verified.
        """
        reason = self.refuse_token(token, broadcast_address) or self._reason(broadcast_address, tls, names)
        if reason:
            self.refused += 1
        return reason

    def _reason(self, broadcast_address: str, tls: bool, names: Sequence[str]) -> str:
        if self._tls_required and not tls:
            return "TLS is required"
        if not self._rules:
            return ""
        if problem := address_error(broadcast_address):
            return problem
        host = canonical_host(broadcast_address)
        is_ip = _is_ip(host)
        if not is_ip and _NUMBER.fullmatch(host):
            return f"{printable(broadcast_address)} is a number, which some resolvers take for an IP address"
        for name in filter(str.isascii, names):
            own = name.lower()
            for matches_name, pattern in self._rules:
                if matches_name(own) and (is_ip or not pattern.endswith(_ANY_END)) and _matcher(pattern, own)(host):
                    return ""
        if not names:
            return "there is no certificate"
        shown = ", ".join(map(printable, names[:_MAX_NAMES_SHOWN]))
        return f"a certificate for {shown} may not claim the broadcast address {printable(broadcast_address)}"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _rule(text: str) -> tuple[_Matches, str]:
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"{printable(text)} is not NAME=PATTERN")
    return _matcher(name), pattern


def _matcher(pattern: str, own_name: str = "") -> _Matches:
    """Match a whole name or address, in lower case."""
    with_name = pattern.lower().split(_OWN_NAME) if own_name else [pattern.lower()]
    return re.compile(re.escape(own_name).join(map(_expression, with_name)), re.DOTALL).fullmatch


def _expression(pattern: str) -> str:
    wildcards = {"*": "[^.]+", "**": ".+"}
    return "".join(wildcards.get(part) or re.escape(part) for part in _WILDCARDS.split(pattern))
