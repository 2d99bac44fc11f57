"""Options of connections and consumers, with pynsq's names and units."""

import difflib
import inspect
import math
import numbers
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self, TypedDict

from nsq_compat import __version__
from nsq_compat.bounded_http import verifying_tls
from nsq_compat.protocol.compression import SNAPPY_INSTALLED, SNAPPY_MISSING
from nsq_compat.protocol.identify import IdentifyRequest

_TLS_OPTIONS: Final = frozenset({"ca_certs", "cert_reqs", "certfile", "keyfile", "ciphers", "check_hostname"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionSettings:
    """Options of a connection. Times are in seconds; `output_buffer_timeout` is in milliseconds, as in pynsq.

    `timeout` limits opening the connection, including negotiation. `tls_options` is an ``ssl.SSLContext``, or a dict
    with pynsq's keys (``ca_certs``, ``cert_reqs``, ``certfile``, ``keyfile``, ``ciphers``) and ``check_hostname``,
    which is False by default, as in pynsq, except for HTTPS. Without options, the system's authorities are used and the
    host name is verified. `message_headers` asks nsqd for messages with headers.
    """

    timeout: float = 5.0
    heartbeat_interval: float = 30
    msg_timeout: float | None = None
    client_id: str = ""
    hostname: str = field(default_factory=socket.gethostname)
    user_agent: str = f"nsq_compat/{__version__}"
    tls_v1: bool = False
    tls_options: ssl.SSLContext | Mapping[str, Any] | None = None
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout: int = 250
    sample_rate: int = 0
    auth_secret: str | bytes | None = field(default=None, repr=False)
    topology_region: str = ""
    topology_zone: str = ""
    message_headers: bool = True

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(each.default) in (int, float) or (each.name == "msg_timeout" and value is not None):
                check_number(each.name, value)
        for name, allowed, rule in self._rules():
            if not allowed:
                raise ValueError(f"{name} must be {rule}, not {getattr(self, name)!r}")
        if self.snappy and not SNAPPY_INSTALLED:
            raise ValueError(SNAPPY_MISSING)

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """For each option that has limits: its name, whether its value is allowed, and the limits."""
        yield "timeout", self.timeout > 0, "above 0"
        yield "heartbeat_interval", self.heartbeat_interval >= 1, "1 second or more"
        yield "msg_timeout", self.msg_timeout is None or self.msg_timeout >= 1, "1 second or more"
        yield "deflate_level", 1 <= self.deflate_level <= 9, "1 to 9"
        yield "sample_rate", 0 <= self.sample_rate < 100, "0 to 99 percent"
        yield "snappy", not (self.snappy and self.deflate), "used without deflate"

    @classmethod
    def of(cls, options: Mapping[str, Any], owner: object) -> Self:
        """The settings with these options of `owner`. Raises ``TypeError`` for unknown ones, ``ValueError``."""
        known = {each.name for each in fields(cls)}
        for name in options:
            if name not in known:
                others = inspect.signature(type(owner).__init__).parameters
                near = difflib.get_close_matches(name, [*known, *others], 3)
                hint = f"; did you mean {' or '.join(near)}?" if near else ", see docs/client.md, Options"
                raise TypeError(f"unknown option {name!r}{hint}")
        return cls(**options)

    def check_idempotent(self, idempotent: bool) -> None:
        """Raises ``ValueError`` if publishes are to be idempotent, and these settings do not allow it."""
        if idempotent and not self.message_headers:
            raise ValueError("idempotent needs message_headers, because an id is a header")

    def identify(self, *, publish_ids: bool = False) -> IdentifyRequest:
        values: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(IdentifyRequest)}
        values |= {
            "client_id": self.client_id or self.hostname.split(".")[0],
            "heartbeat_interval": int(self.heartbeat_interval * 1000),
            "feature_negotiation": True,
            "deflate_level": self.deflate_level if self.deflate else 0,
            "msg_timeout": int((self.msg_timeout or 0) * 1000),
            "publish_ids": publish_ids,
        }
        return IdentifyRequest(**values)

    def secret(self) -> bytes:
        """`auth_secret` in bytes; empty if there is none."""
        secret = self.auth_secret or b""
        return secret.encode("utf-8") if isinstance(secret, str) else secret

    def headers(self) -> dict[str, str]:
        """The header with `auth_secret` for HTTP requests to nsqlookupd and nsqd, as go-nsq sends it to nsqlookupd."""
        token = self.secret().decode("latin-1")
        return {"Authorization": f"Bearer {token}"} if token and token.isascii() and token.isprintable() else {}

    def tls_context(self, *, check_hostname: bool = False) -> ssl.SSLContext:
        """Raises ``OSError`` for files that cannot be read, ``ValueError`` for unknown options.

        `check_hostname` applies if `tls_options` are a dict without it, unless they accept any certificate.
        """
        options = self.tls_options
        if isinstance(options, ssl.SSLContext):
            return options
        context = verifying_tls(options.get("ca_certs") if options else None)
        context.hostname_checks_common_name = False  # RFC 9525; Go's clients do not look at it either
        if options is None:
            return context
        if unknown := set(options) - _TLS_OPTIONS - {"ssl_version"}:
            raise ValueError(f"unknown tls_options: {', '.join(sorted(unknown))}")
        verify_mode = ssl.VerifyMode(options.get("cert_reqs", ssl.CERT_REQUIRED))
        checks = check_hostname and verify_mode != ssl.CERT_NONE
        context.check_hostname = bool(options.get("check_hostname", checks))
        context.verify_mode = verify_mode
        if options.get("certfile"):
            # Without a password, OpenSSL asks for that of an encrypted key at the terminal.
            context.load_cert_chain(options["certfile"], options.get("keyfile"), password="")
        if options.get("ciphers"):
            context.set_ciphers(options["ciphers"])
        return context


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionSettings(ConnectionSettings):
    """Options of a consumer and of its connections. Times are in seconds."""

    max_in_flight: int = 1
    requeue_delay: float = 90
    max_requeue_delay: float = 900
    lookupd_poll_interval: float = 60
    lookupd_poll_jitter: float = 0.3
    lookupd_connect_timeout: float = 1.0
    lookupd_request_timeout: float = 2.0
    low_rdy_idle_timeout: float = 10
    backoff: bool = True
    first_backoff_duration: float = 2
    max_backoff_duration: float = 128
    reconnect_delay: float = 8
    max_reconnect_delay: float = 120

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        # Not super(): it does not work in a class with slots.
        yield from ConnectionSettings._rules(self)
        yield "max_in_flight", self.max_in_flight >= 1, "1 or more"
        yield "lookupd_poll_jitter", 0 <= self.lookupd_poll_jitter <= 1, "0 to 1"


# The same for type checkers, as keyword arguments.


class ConnectionOptions(TypedDict, total=False):
    """The fields of ``ConnectionSettings``."""

    timeout: float
    heartbeat_interval: float
    msg_timeout: float | None
    client_id: str
    hostname: str
    user_agent: str
    tls_v1: bool
    tls_options: ssl.SSLContext | Mapping[str, Any] | None
    snappy: bool
    deflate: bool
    deflate_level: int
    output_buffer_size: int
    output_buffer_timeout: int
    sample_rate: int
    auth_secret: str | bytes | None
    topology_region: str
    topology_zone: str
    message_headers: bool


class SubscriptionOptions(ConnectionOptions, total=False):
    """The fields of ``SubscriptionSettings``."""

    max_in_flight: int
    requeue_delay: float
    max_requeue_delay: float
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_connect_timeout: float
    lookupd_request_timeout: float
    low_rdy_idle_timeout: float
    backoff: bool
    first_backoff_duration: float
    max_backoff_duration: float
    reconnect_delay: float
    max_reconnect_delay: float


def check_number(name: str, value: object) -> None:
    """Raises ``TypeError`` or ``ValueError`` for a value that is not a finite number, such as "1s"."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {value!r:.80}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")


def address_list(addresses: str | Iterable[str] | None) -> list[str]:
    """A list of addresses from one address, several, or None."""
    return [addresses] if isinstance(addresses, str) else list(addresses or ())


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``. Raises ``ValueError``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"not host:port: {address!r}")
    return host.strip("[]"), int(port)
