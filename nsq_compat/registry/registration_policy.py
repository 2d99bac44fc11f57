"""Which connections may register an nsqd, and under which broadcast addresses.

Consumers connect to the broadcast addresses that nsqlookupd lists, so a connection that may claim any address can
direct the consumers of a topic to itself. `RegistrationPolicy.refusal` is the only check. It is made at IDENTIFY,
before which nothing can be registered.

A rule is ``NAME=PATTERN``: a certificate with this name (its common name, or a DNS name among its alternative names)
may claim the broadcast addresses that match the pattern. In both, ``*`` stands for one or more characters other than a
dot, and ``**`` for any. ``{name}`` in a pattern stands for the certificate's own name. A pattern that ends with ``.*``
or ``.**`` is one of IP addresses: otherwise ``10.0.0.*`` would match the name ``10.0.0.example``. The zone of an IPv6
address is compared only with a pattern that has one: otherwise ``::1%x.example`` would match ``*.example``.
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
_Rule = tuple[_Matches, str, _Matches | None]
"""Of names, the pattern of addresses in lower case, and what matches it unless it depends on the name."""


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

    @property
    def admits_all(self) -> bool:
        """Whether every connection may register every address."""
        return not (self._rules or self._tls_required or self.refuse_token(b"", ""))

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
        without_zone = host.partition("%")[0]
        is_ip = _is_ip(host)
        if not is_ip and _NUMBER.fullmatch(host):
            return f"{printable(broadcast_address)} is a number, which some resolvers take for an IP address"
        # A certificate may have thousands of names, for each of which a pattern would have to be compiled.
        for own in (name.lower() for name in names if name.isascii()):
            for matches_name, pattern, matches_address in self._rules:
                if (is_ip or not pattern.endswith(_ANY_END)) and (matches_address or own in host) and matches_name(own):
                    subject = host if "%" in pattern else without_zone
                    if (matches_address or _matcher(pattern, own))(subject):
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


def _rule(text: str) -> _Rule:
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"{printable(text)} is not NAME=PATTERN")
    pattern = pattern.lower()
    return _matcher(name), pattern, None if _OWN_NAME in pattern else _matcher(pattern)


def _matcher(pattern: str, own_name: str = "") -> _Matches:
    """Match a whole name or address, in lower case."""
    with_name = pattern.lower().split(_OWN_NAME) if own_name else [pattern.lower()]
    return re.compile(re.escape(own_name).join(map(_expression, with_name)), re.DOTALL).fullmatch


def _expression(pattern: str) -> str:
    wildcards = {"*": "[^.]+", "**": ".+"}
    return "".join(wildcards.get(part) or re.escape(part) for part in _WILDCARDS.split(pattern))
