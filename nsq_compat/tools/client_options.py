"""Options of the client library: the flags for reading a channel, ``--consumer-opt`` and ``--producer-opt``.

The last two take go-nsq's options, as ``key,value``, or ``key`` alone for true; dashes in keys are underscores. Options
that our client does not have are checked and ignored.
"""

import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from nsq_compat.cli.kinds import STRINGS
from nsq_compat.cli.options import option
from nsq_compat.client import Consumer
from nsq_compat.client.message import Handler
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.protocol.durations import MILLISECOND, SECOND, parse_duration
from nsq_compat.tools.program import Refused, user_agent

_HOUR = 3600.0


@dataclass(slots=True, kw_only=True)
class ReadingOptions:
    """The flags of every utility that reads a channel, as NSQ names them."""

    nsqd_tcp_addresses: tuple[str, ...] = option(
        "nsqd-tcp-address", STRINGS, (), "host:port of an nsqd (repeat for several)"
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        "lookupd-http-address", STRINGS, (), "host:port or URL of an nsqlookupd (repeat for several)"
    )
    consumer_opt: tuple[str, ...] = option(
        "consumer-opt", STRINGS, (), "`name,value` of an option of the client library (repeat for several)"
    )

    def consumer(self, program: str, topic: str, channel: str, handler: Handler, **settings: Any) -> Consumer:
        """Make a consumer that never gives a message up unless ``--consumer-opt`` says so. Raises ``Refused``."""
        settings = {"max_tries": 0, **settings, **consumer_options(self.consumer_opt)}
        try:
            return Consumer(
                topic,
                channel,
                handler,
                nsqd_tcp_addresses=self.nsqd_tcp_addresses,
                lookupd_http_addresses=self.lookupd_http_addresses,
                user_agent=user_agent(program),
                **settings,
            )
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Key:
    """How a value is read, its limits, and the name of our client's option ("" for none)."""

    read: Callable[[str], Any]
    name: str = ""
    low: float | None = None
    high: float | None = None


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "t", "true"):
        return True
    if text.lower() in ("0", "f", "false"):
        return False
    raise ValueError


def _seconds(text: str) -> float:
    return parse_duration(text) / SECOND


def _milliseconds(text: str) -> int:
    return parse_duration(text) // MILLISECOND


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
    "tls_v1": _Key(_boolean, "tls_v1"),
    "tls_root_ca_file": _Key(str),
    "tls_insecure_skip_verify": _Key(_boolean),
    "tls_cert": _Key(str),
    "tls_key": _Key(str),
    "deflate": _Key(_boolean, "deflate"),
    "deflate_level": _Key(int, "deflate_level", 1, 9),
    "snappy": _Key(_boolean, "snappy"),
    "output_buffer_size": _Key(int, "output_buffer_size"),
    "output_buffer_timeout": _Key(_milliseconds, "output_buffer_timeout"),
    "max_in_flight": _Key(int, "", 0),
    "msg_timeout": _Key(_seconds, "msg_timeout", 0),
    "auth_secret": _Key(str, "auth_secret"),
}
_CONSUMER_ONLY: Final = frozenset({
    "lookupd_poll_interval", "lookupd_poll_jitter", "lookupd_request_timeout", "max_requeue_delay", "requeue_delay",
    "max_backoff_duration", "first_backoff_duration", "max_tries", "low_rdy_idle_timeout",
})  # fmt: skip


def consumer_options(words: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments for ``client.Consumer``. Raises ``Refused``."""
    return _read(words, "consumer-opt")


def producer_options(words: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments for ``client.Producer``. Raises ``Refused``."""
    options = _read(words, "producer-opt")
    return {name: value for name, value in options.items() if name not in _CONSUMER_ONLY}


def _read(words: Iterable[str], flag: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for word in words:
        key, comma, text = word.partition(",")
        key = key.replace("-", "_")
        row = _KEYS.get(key)
        if row is None:
            raise Refused(f'invalid value "{word}" for flag -{flag}: invalid option {key}')
        value = _value(row, key, text if comma else "true", f'invalid value "{word}" for flag -{flag}')
        if key.startswith("tls_") and key != "tls_v1":
            tls[key] = value
        elif row.name:
            options[row.name] = value
    if tls:
        options["tls_options"] = _tls(tls)
    if not options.get("msg_timeout", 1):
        del options["msg_timeout"]  # nsqd's default
    return options


def _value(row: _Key, key: str, text: str, problem: str) -> Any:
    try:
        value = row.read(text)
    except ValueError:
        raise Refused(f"{problem}: cannot read {key}") from None
    if row.low is not None and value < row.low:
        raise Refused(f"invalid {key} ! {text} < {row.low:g}")
    if row.high is not None and value > row.high:
        raise Refused(f"invalid {key} ! {text} > {row.high:g}")
    return value


def _tls(options: dict[str, Any]) -> dict[str, Any]:
    """As ``client.settings.ConnectionSettings.tls_options``."""
    unverified = options.get("tls_insecure_skip_verify", False)
    translated: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE if unverified else ssl.CERT_REQUIRED}
    for theirs, ours in (("tls_root_ca_file", "ca_certs"), ("tls_cert", "certfile"), ("tls_key", "keyfile")):
        if theirs in options:
            translated[ours] = options[theirs]
    return translated


def cluster_of(addresses: Sequence[str], *, connect_timeout: float, request_timeout: float) -> Cluster:
    """The cluster that these nsqlookupds know; `addresses` are ``host:port`` or URLs."""
    found = [urlsplit(each if "://" in each else f"//{each}").netloc for each in addresses]
    return Cluster(HttpClient(connect_timeout=connect_timeout, request_timeout=request_timeout), lookupds=found)
