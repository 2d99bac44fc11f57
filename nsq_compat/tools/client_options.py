"""Options of the client library: the flags for reading a channel, ``--consumer-opt`` and ``--producer-opt``.

The last two take go-nsq's options, as ``key,value``, or ``key`` alone for true; dashes in keys are underscores. Options
that our client does not have are checked and ignored.
"""

import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, parse_bool
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Connection, ConnectionLost, Consumer, Gap, Producer
from nsq_compat.client.connection import do_together, start_thread
from nsq_compat.client.link import Observer, why
from nsq_compat.client.message import Handler
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import HTTPS, AllFailed, Answer, HttpClient, named
from nsq_compat.cluster.nodes import Node
from nsq_compat.policy.access import is_token
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.durations import MILLISECOND, parse_duration, seconds
from nsq_compat.protocol.errors import E_AUTH_FIRST, NsqError, hidden, without_secrets
from nsq_compat.session.client_session import ProtocolError
from nsq_compat.tools.program import ProgramOptions, Refused, Rule, say, unless_one_kind

_HOUR = 3600.0
_RETRY_SECONDS: Final = 2.0

T = TypeVar("T")


_SEPARATOR: Final = re.compile(r"[^\w-]")


def shown_option(word: str) -> str:
    """An option of the client library without its secret, also if its name is misspelled or no comma follows it."""
    key = word.partition(",")[0].replace("-", "_")
    return word if key in _KEYS and key != "auth_secret" else _without_value(word)


def _without_value(word: str) -> str:
    found = _SEPARATOR.search(word)
    return word if found is None else f"{word[: found.end()]}{hidden(word[found.end() :])}"


class Unreachable(Refused):
    """A daemon that was named does not answer."""


@dataclass(kw_only=True)
class RetryOptions(ProgramOptions):
    """The flag of a utility that depends on daemons."""

    retry: bool = option(BOOLEAN, False, "wait for a daemon that cannot be reached at the start, instead of exiting")

    def reached(self, act: Callable[[], T], stopping: threading.Event) -> T | None:
        """The result of `act`. With ``--retry``, repeat it while it raises ``Unreachable``; None after a signal."""
        while not stopping.is_set():
            try:
                return act()
            except Unreachable as error:
                if not self.retry:
                    raise
                say(f"{error}; trying again in {_RETRY_SECONDS:g} s")
                stopping.wait(_RETRY_SECONDS)
        return None


@dataclass(kw_only=True)
class ProducerOptions(ProgramOptions):
    """The flag of a utility that publishes."""

    producer_opt: tuple[str, ...] = repeated(
        "`name,value` of an option of the client library, publishing", secret=shown_option
    )

    def producer(self, addresses: str | Iterable[str], **settings: Any) -> Producer:
        """Raises ``Refused``."""
        settings.update(client_settings("producer-opt", self.producer_opt))
        with refusing():
            return Producer(addresses, user_agent=self.user_agent, **settings)


class HttpTls(NamedTuple):
    """TLS of requests to daemons: PEM files, as `HttpClient` takes them."""

    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""
    tls_skip_verify: bool = False


@dataclass(kw_only=True)
class ReadingOptions(RetryOptions):
    """The flags of every utility that reads a channel, as NSQ names them."""

    nsqd_tcp_addresses: tuple[str, ...] = repeated("host:port of an nsqd", flag="nsqd-tcp-address")
    lookupd_http_addresses: tuple[str, ...] = repeated(
        "host:port or URL of an nsqlookupd", flag="lookupd-http-address", secret=without_secrets
    )
    consumer_opt: tuple[str, ...] = repeated("`name,value` of an option of the client library", secret=shown_option)

    max_in_flight: int = option(INTEGER, 200, "most messages of a topic in flight")

    def address_rules(self) -> Iterator[Rule]:
        return unless_one_kind(self.nsqd_tcp_addresses, self.lookupd_http_addresses)

    @property
    def http_tls(self) -> HttpTls:
        """TLS of requests to nsqlookupds and nsqds, from the options for TLS in ``--consumer-opt``. Raises ``Refused``.

        The same options apply to the queries of a consumer.
        """
        options = client_settings("consumer-opt", self.consumer_opt).get("tls_options", {})
        return HttpTls(
            options.get("certfile", ""),
            options.get("keyfile", ""),
            options.get("ca_certs", ""),
            options.get("cert_reqs") == ssl.CERT_NONE,
        )

    def consumer(
        self,
        topic: str,
        channel: str,
        handler: Handler,
        *,
        fail: Callable[[str], object] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Consumer:
        """Make a consumer that never gives a message up unless ``--consumer-opt`` says so. Raises ``Refused``.

        Without ``--retry``, `fail` is called with an error text if a named nsqd cannot be reached at the start.
        ``--consumer-opt`` takes precedence over `defaults`, and `settings` over both.
        """
        settings = {
            "nsqd_tcp_addresses": self.nsqd_tcp_addresses,
            "lookupd_http_addresses": self.lookupd_http_addresses,
            "user_agent": self.user_agent,
            "max_in_flight": self.max_in_flight,
            "max_tries": 0,
            **(defaults or {}),
            **client_settings("consumer-opt", self.consumer_opt),
            **settings,
        }
        if fail is not None and not self.retry:
            settings["unreachable"] = lambda address, error: fail(
                unreachable(address, error) + ("" if is_refusal(error) else " (--retry waits for it)")
            )
        with refusing():
            return Consumer(topic, channel, handler, **settings)


@dataclass(kw_only=True)
class ClusterOptions(RetryOptions):
    """The flags of a utility that queries the daemons."""

    nsqd_http_addresses: tuple[str, ...] = repeated("host:port of an nsqd", flag="nsqd-http-address")
    nsqlookupd_http_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqlookupd, or https://host:port", flag="lookupd-http-address"
    )
    http_client_tls_insecure_skip_verify: bool = option(
        BOOLEAN, False, "do not check the certificates of nsqlookupd and nsqd"
    )
    http_client_tls_root_ca_file: str = option(STRING, "", "PEM file with the authorities of nsqlookupd and nsqd")
    http_client_tls_cert: str = option(STRING, "", "PEM file with the client certificate for nsqlookupd and nsqd")
    http_client_tls_key: str = option(STRING, "", "PEM file with the key of the client certificate")
    token: str = option(STRING, "", "token for daemons with an access file", secret=hidden)

    def address_rules(self) -> Iterator[Rule]:
        yield from unless_one_kind(self.nsqd_http_addresses, self.nsqlookupd_http_addresses, "--nsqd-http-address")
        yield without_a_user(*self.nsqd_http_addresses, *self.nsqlookupd_http_addresses)
        lacks_cert = bool(self.http_client_tls_key and not self.http_client_tls_cert)
        yield not is_token(self.token), "--token must be printable, without blanks"
        yield lacks_cert, "--http-client-tls-key requires --http-client-tls-cert"

    def log_settings(self) -> dict[str, Any]:
        """What these flags mean for a ``LogReader``."""
        tls: dict[str, Any] = {
            "ca_certs": self.http_client_tls_root_ca_file,
            "certfile": self.http_client_tls_cert,
            "keyfile": self.http_client_tls_key,
        }
        tls = {name: path for name, path in tls.items() if path}
        if self.http_client_tls_insecure_skip_verify:
            tls |= {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
        found: dict[str, Any] = {"auth_secret": self.token} if self.token else {}
        return found | ({"tls_options": tls} if tls else {})

    def cluster(self, connect_timeout: float = 2.0, request_timeout: float = 5.0) -> Cluster:
        """Times are in seconds."""
        tls = HttpTls(
            self.http_client_tls_cert,
            self.http_client_tls_key,
            self.http_client_tls_root_ca_file,
            self.http_client_tls_insecure_skip_verify,
        )
        client = HttpClient(
            connect_timeout=connect_timeout, request_timeout=request_timeout, token=self.token, **tls._asdict()
        )
        lookupds, nsqds = (
            tuple(dict.fromkeys(each)) for each in (self.nsqlookupd_http_addresses, self.nsqd_http_addresses)
        )
        return Cluster(client, lookupds, nsqds)


def without_a_user(*addresses: str) -> Rule:
    """The rule for flags that have no `-file`, so that a password would be on the command line."""
    return any("@" in each for each in addresses), "the addresses must not have a user and password"


def cluster_of(
    options: ReadingOptions, connect_timeout: float = 2.0, request_timeout: float = 5.0, nsqds: Iterable[str] = ()
) -> Cluster:
    """The cluster that the nsqlookupds of a utility know, or else of these `nsqds`. Raises ``Refused``."""
    token = str(client_settings("consumer-opt", options.consumer_opt).get("auth_secret", ""))
    client = HttpClient(
        connect_timeout=connect_timeout, request_timeout=request_timeout, token=token, **options.http_tls._asdict()
    )
    lookupds = tuple(dict.fromkeys(map(_daemon_address, options.lookupd_http_addresses)))
    return Cluster(client, lookupds, () if lookupds else tuple(dict.fromkeys(nsqds)))


def _daemon_address(address: str) -> str:
    """``host:port``, or ``https://host:port``, of an address that may be a URL."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return f"{HTTPS}{parts.netloc}" if parts.scheme == "https" else parts.netloc


def producers_of(cluster: Cluster, topic: str, *, all_named: bool) -> Answer[list[Node]]:
    """The nsqds that have a topic. An nsqlookupd that does not know the topic causes no error.

    Raises ``Unreachable`` if no daemon answers, and with `all_named` if a named nsqd does not.
    """
    kind = "nsqlookupd" if cluster.lookupds else "nsqd"
    try:
        found = cluster.producers(topic)
    except AllFailed as failure:
        if all(_UNKNOWN_TOPIC in error for error in failure.errors):
            return Answer([])
        is_other = any("got response 404" in error for error in failure.errors)
        hint = f"; is this {kind}'s HTTP port?" if is_other else ""
        raise Unreachable("; ".join(f"{kind} {named(error)}" for error in failure.errors) + hint) from None
    errors = [f"{kind} {named(error)}" for error in found.errors if _UNKNOWN_TOPIC not in error]
    if errors and all_named and not cluster.lookupds:
        raise Unreachable("; ".join(errors))
    return replace(found, errors=tuple(errors))


def log_settings(consumer_opt: Iterable[str], user_agent: str) -> dict[str, Any]:
    """The settings of a ``LogReader``: of ``--consumer-opt`` those that HTTP has too. Raises ``Refused``."""
    given = client_settings("consumer-opt", consumer_opt)
    kept = ("timeout", "tls_options", "auth_secret")
    used: dict[str, Any] = {name: given[name] for name in kept if name in given}
    return {**used, "user_agent": user_agent, "on_gap": _warn_of}


def _warn_of(gap: Gap) -> None:
    say(f"WARNING: nsqd {gap.nsqd}: the messages {gap.first} to {gap.last} are lost")


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into ``Refused``; by default those of our client for wrong options."""
    refused = kinds or (TypeError, ValueError)
    try:
        yield
    except refused as error:
        raise Refused(str(error)) from error


# --- Nodes that cannot be reached -------------------------------------------------------------------------------------

_UNKNOWN_TOPIC: Final = "TOPIC_NOT_FOUND"
_REMEDIES: Final = {
    "E_AUTH_FIRST": "give a secret with --{flag}=auth_secret,SECRET, or with that in --{flag}-file",
    "TLS required": "use --{flag}=tls_v1",
}
"""What to do, by a part of nsqd's error."""

_REFUSALS: Final = (NsqError, ProtocolError)


def with_remedy(text: str, flag: str) -> str:
    """The text of an error, and the option of the client library that would help."""
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in text), "")
    return f"{text}; {remedy.format(flag=flag)}" if remedy else text


def unreachable(address: str, error: Exception, flag: str = "consumer-opt") -> str:
    return with_remedy(f"nsqd {address}: {why(error)}", flag)


def is_refusal(error: Exception) -> bool:
    """Whether an nsqd answered, but not as these options need it."""
    return isinstance(error, _REFUSALS) or isinstance(error.__cause__, _REFUSALS)


def reach(addresses: Iterable[str], settings: ConnectionSettings, flag: str, *, may_be_down: bool = False) -> None:
    """Connect to each of these nsqd once. Raises ``Unreachable`` with the reasons of those that refuse the client, or,
    unless they `may_be_down`, cannot be reached."""
    failures: list[str] = []

    def probe(address: str) -> None:
        reason = _Reason()
        connection = Connection(address, settings, reason)
        try:
            connection.open()
        except ConnectionLost as error:
            if not may_be_down or is_refusal(error):
                failures.append(unreachable(address, error, flag))
            return
        start_thread(f"nsqd {address}", connection.run)
        # The first command after the negotiation is refused if nsqd requires TLS.
        connection.send(command_writer.NOP)
        connection.close()
        refusal = reason.refusal
        if refusal is None and connection.lacks_secret:
            refusal = NsqError(E_AUTH_FIRST, b"AUTH required")
        if refusal is not None:
            failures.append(unreachable(address, refusal, flag))

    do_together(partial(probe, address) for address in dict.fromkeys(addresses))
    if failures:
        raise Unreachable("; ".join(failures))


class _Reason(Observer[Connection]):
    """The error with which nsqd ended a connection."""

    refusal: NsqError | None = None

    def closed(self, connection: Connection, reason: Exception) -> None:
        if isinstance(reason, NsqError):
            self.refusal = reason


# --- Options of go-nsq ------------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """How a value is read, the name of our client's option ("" for none), and its limits."""

    read: Callable[[str], Any]
    name: str = ""
    low: float | None = None
    high: float | None = None


def _seconds(text: str) -> float:
    return seconds(parse_duration(text))


_TLS_NAMES: Final = {"cert_reqs", "ca_certs", "certfile", "keyfile"}
"""Of ``client.settings.ConnectionSettings.tls_options``."""
_KEYS: Final[dict[str, _Key]] = {
    "dial_timeout": _Key(_seconds, "timeout"),
    "read_timeout": _Key(_seconds, "", 0.1, 300),
    "write_timeout": _Key(_seconds, "", 0.1, 300),
    "lookupd_poll_interval": _Key(_seconds, "lookupd_poll_interval", 0.01, 300),
    "lookupd_poll_jitter": _Key(float, "lookupd_poll_jitter", 0, 1),
    "lookupd_poll_timeout": _Key(_seconds, "lookupd_request_timeout"),
    "max_requeue_delay": _Key(_seconds, "max_requeue_delay", 0, _HOUR),
    "default_requeue_delay": _Key(_seconds, "requeue_delay", 0, _HOUR),
    "max_backoff_duration": _Key(_seconds, "max_backoff_duration", 0, _HOUR),
    "backoff_multiplier": _Key(_seconds, "first_backoff_duration", 0, _HOUR),
    "max_attempts": _Key(int, "max_tries", 0, 65535),
    "low_rdy_idle_timeout": _Key(_seconds, "low_rdy_idle_timeout", 1, 300),
    "low_rdy_timeout": _Key(_seconds, "", 1, 300),
    "rdy_redistribute_interval": _Key(_seconds, "", 0.001, 5),
    "client_id": _Key(str, "client_id"),
    "hostname": _Key(str, "hostname"),
    "user_agent": _Key(str),
    "heartbeat_interval": _Key(_seconds, "heartbeat_interval", 1),
    "sample_rate": _Key(int, "sample_rate", 0, 99),
    "tls_v1": _Key(parse_bool, "tls_v1"),
    "tls_root_ca_file": _Key(str, "ca_certs"),
    "tls_insecure_skip_verify": _Key(
        lambda text: ssl.CERT_NONE if parse_bool(text) else ssl.CERT_REQUIRED, "cert_reqs"
    ),
    "tls_cert": _Key(str, "certfile"),
    "tls_key": _Key(str, "keyfile"),
    "deflate": _Key(parse_bool, "deflate"),
    "deflate_level": _Key(int, "deflate_level", 1, 9),
    "snappy": _Key(parse_bool, "snappy"),
    "output_buffer_size": _Key(int, "output_buffer_size"),
    "output_buffer_timeout": _Key(lambda text: parse_duration(text) // MILLISECOND, "output_buffer_timeout"),
    "max_in_flight": _Key(int, "", 0),
    "msg_timeout": _Key(_seconds, "msg_timeout", 0),
    "auth_secret": _Key(str, "auth_secret"),
}


def client_settings(flag: str, words: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments for ``client.Consumer`` or ``client.Producer``, as the flag says. Raises ``Refused``."""
    options: dict[str, Any] = {}
    for word in words:
        key, comma, text = word.partition(",")
        key = key.replace("-", "_")
        if key not in _KEYS:  # it may be a misspelled secret
            shown = _without_value(word)
            name = _SEPARATOR.split(key)[0]
            hint = f"; write {name},VALUE" if name in _KEYS else ""
            raise Refused(f'invalid value "{shown}" for flag -{flag}: invalid option {name}{hint}')
        problem = f'invalid value "{word}" for flag -{flag}'
        read, name, low, high = _KEYS[key]
        try:
            value = read(text if comma else "true")
        except ValueError:
            raise Refused(f"{problem}: cannot read {key}") from None
        if low is not None and value < low:
            raise Refused(f"invalid {key} ! {text} < {low:g}")
        if high is not None and value > high:
            raise Refused(f"invalid {key} ! {text} > {high:g}")
        if name:
            options[name] = value
    if tls := {name: options.pop(name) for name in _TLS_NAMES & options.keys()}:
        # go-nsq: unlike pynsq's dict, these options leave it at that names are verified.
        verifies = tls.setdefault("cert_reqs", ssl.CERT_REQUIRED) != ssl.CERT_NONE
        options["tls_options"] = {**tls, "check_hostname": verifies}
    if not options.get("msg_timeout", 1):
        del options["msg_timeout"]  # nsqd's default
    if flag == "producer-opt":
        names = {each.name for each in fields(ConnectionSettings)}
        options = {name: value for name, value in options.items() if name in names}
    return options
