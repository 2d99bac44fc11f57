"""What a user may write in ``.option(...)``: one table, from which options are read, checked and complained about.

Names are camelCase and not case-sensitive, as Spark's are; pynsq's names are taken as well. Every complaint names the
option and says what to write instead, and comes before anything is consumed.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nsq_compat.protocol.names import is_ephemeral, is_valid_name

STREAM: Final = "stream"
BATCH: Final = "batch"
_USES: Final = (STREAM, BATCH)

# What Spark itself puts among the options, or takes from them.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})


class OptionError(ValueError):
    """An option is missing or wrong; the text is for the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The options of reading, checked. Times in seconds; 0 in `max_in_flight` and `chunk_messages` is what nsqd allows
    and half of that; in `min_partitions` and `max_messages` "no such wish"."""

    topics: tuple[str, ...]
    channel: str
    lookupd_http_addresses: tuple[str, ...]
    nsqd_tcp_addresses: tuple[str, ...]
    nsqd_http_addresses: tuple[str, ...]
    spool_dir: str
    create_channel: bool
    max_messages_per_trigger: int
    max_messages_per_partition: int
    max_messages: int
    partitions_per_nsqd: int
    min_partitions: int
    max_in_flight: int
    chunk_messages: int
    idle_timeout: float
    max_read: float
    poll_interval: float
    lookup_interval: float
    connect_timeout: float
    msg_timeout: float
    suppress_redelivered: bool
    suspect_ttl: float
    spool_retain_batches: int
    fail_on_data_loss: bool
    fail_on_unreachable: bool
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    tls_skip_verify: bool
    auth_secret: str
    snappy: bool
    deflate: bool
    deflate_level: int


def _text(raw: str) -> str:
    return raw


def _flag(raw: str) -> bool:
    flags = {"true": True, "false": False, "1": True, "0": False}
    if raw.lower() not in flags:
        raise ValueError("true or false")
    return flags[raw.lower()]


def _whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def read(raw: str) -> int:
        if not raw.strip().isdigit() or not least <= int(raw) <= most:
            raise ValueError(f"a whole number, {least} to {most}")
        return int(raw)

    return read


def _milliseconds(least: int, most: int = 2**31 - 1) -> Callable[[str], float]:
    def read(raw: str) -> float:
        if not raw.strip().isdigit() or not least <= int(raw) <= most:
            raise ValueError(f"milliseconds, {least} to {most}, without a unit")
        return int(raw) / 1000

    return read


def _list(raw: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece for piece in (each.strip() for each in raw.split(",")) if piece))


def _topics(raw: str) -> tuple[str, ...]:
    topics = _list(raw)
    if not topics or not all(map(is_valid_name, topics)):
        raise ValueError("topics, several with commas: letters, digits, '.', '_' and '-', up to 64")
    if any(map(is_ephemeral, topics)):
        raise ValueError(
            "topics that are kept: between two batches nobody is connected, nsqd would delete #ephemeral ones"
        )
    return topics


def _channel(raw: str) -> str:
    if not is_valid_name(raw):
        raise ValueError("a channel: letters, digits, '.', '_' and '-', up to 64")
    if is_ephemeral(raw):
        raise ValueError(
            "a channel that is kept: between two batches nobody is connected, nsqd would delete an #ephemeral one"
        )
    return raw


def _addresses(raw: str) -> tuple[str, ...]:
    addresses = _list(raw)
    for each in addresses:
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("host:port, several with commas")
    return addresses


def _http_addresses(raw: str) -> tuple[str, ...]:
    addresses = tuple(each.removeprefix("http://").rstrip("/") for each in _list(raw))
    return _addresses(",".join(addresses))


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `default` is written as a user would; None: the option is required."""

    name: str
    field: str
    read: Callable[[str], Any]
    default: str | None
    meaning: str
    uses: tuple[str, ...] = _USES
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option("subscribe", "topics", _topics, None, "topics, several with commas", aliases=("topic",)),
    Option("channel", "channel", _channel, None, "the channel; one for each query"),
    Option(
        "lookupdHttpAddresses",
        "lookupd_http_addresses",
        _http_addresses,
        "",
        "nsqlookupd to ask which nsqd have the topics",
        aliases=("lookupd_http_addresses",),
    ),
    Option(
        "nsqdTcpAddresses",
        "nsqd_tcp_addresses",
        _addresses,
        "",
        "nsqd to read, instead of asking nsqlookupd",
        aliases=("nsqd_tcp_addresses",),
    ),
    Option(
        "nsqdHttpAddresses",
        "nsqd_http_addresses",
        _http_addresses,
        "",
        "the HTTP addresses of `nsqdTcpAddresses`, in the same order; without them every trigger plans blindly",
        aliases=("nsqd_http_addresses",),
    ),
    Option("spoolDir", "spool_dir", _text, None, "a folder that the driver and all executors share"),
    Option("createChannel", "create_channel", _flag, "true", "create the channel on every nsqd at the start"),
    Option(
        "maxMessagesPerTrigger",
        "max_messages_per_trigger",
        _whole(1),
        "500000",
        "at most so many messages in a micro-batch",
        (STREAM,),
        ("maxOffsetsPerTrigger",),
    ),
    Option("maxMessages", "max_messages", _whole(0), "0", "at most so many messages; 0 for all that wait", (BATCH,)),
    Option(
        "maxMessagesPerPartition",
        "max_messages_per_partition",
        _whole(1),
        "200000",
        "at most so many messages in a task",
    ),
    Option("partitionsPerNsqd", "partitions_per_nsqd", _whole(1, 1024), "1", "connections, and tasks, for each nsqd"),
    Option(
        "minPartitions", "min_partitions", _whole(0, 4096), "0", "at least so many tasks, if there are messages enough"
    ),
    Option(
        "maxInFlight",
        "max_in_flight",
        _whole(0),
        "0",
        "messages in flight on a connection; 0 for as many as nsqd allows",
        aliases=("max_in_flight",),
    ),
    Option(
        "chunkMessages", "chunk_messages", _whole(0), "0", "messages spooled and finished together; 0: half of those"
    ),
    Option("idleTimeoutMs", "idle_timeout", _milliseconds(1), "300", "a task ends when so long no message came"),
    Option("maxReadMs", "max_read", _milliseconds(1), "10000", "a task reads no longer than this"),
    Option(
        "pollIntervalMs",
        "poll_interval",
        _milliseconds(0),
        "200",
        "least time between two looks at the backlog",
        (STREAM,),
    ),
    Option(
        "lookupIntervalMs",
        "lookup_interval",
        _milliseconds(0),
        "15000",
        "least time between two questions to nsqlookupd",
    ),
    Option(
        "connectTimeoutMs", "connect_timeout", _milliseconds(1), "5000", "for connecting, and for each HTTP request"
    ),
    Option(
        "msgTimeoutMs",
        "msg_timeout",
        _milliseconds(0),
        "0",
        "after a crash messages come again so much later; 0: nsqd's",
    ),
    Option("suppressRedelivered", "suppress_redelivered", _flag, "true", "drop what comes again after a crash"),
    Option("suspectTtlMs", "suspect_ttl", _milliseconds(0), "86400000", "how long that is remembered"),
    Option(
        "spoolRetainBatches",
        "spool_retain_batches",
        _whole(0),
        "1",
        "committed batches that stay in the spool",
        (STREAM,),
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", _flag, "true", "fail if a batch is wanted again and its spool is gone"
    ),
    Option("failOnUnreachable", "fail_on_unreachable", _flag, "false", "fail if an nsqd cannot be reached"),
    Option("tls", "tls", _flag, "false", "TLS; without it on nsqd's side there is no connection", aliases=("tls_v1",)),
    Option("tlsCaFile", "tls_ca_file", _text, "", "authorities to trust, instead of the system's"),
    Option("tlsCertFile", "tls_cert_file", _text, "", "client certificate"),
    Option("tlsKeyFile", "tls_key_file", _text, "", "its key, if it is not in the same file"),
    Option("tlsSkipVerify", "tls_skip_verify", _flag, "false", "trust everybody"),
    Option("authSecret", "auth_secret", _text, "", "said when nsqd asks for authorization", aliases=("auth_secret",)),
    Option("snappy", "snappy", _flag, "false", "compression"),
    Option("deflate", "deflate", _flag, "false", "compression"),
    Option("deflateLevel", "deflate_level", _whole(1, 9), "6", "1 to 9", aliases=("deflate_level",)),
)


def read_options(given: Mapping[str, str], use: str) -> ReadOptions:
    """The options of a streaming or batch read. Raises ``OptionError``."""
    names = {name.lower(): row for row in OPTIONS for name in (row.name, *row.aliases)}
    said: dict[str, str] = {}
    for name, value in given.items():
        row = names.get(name.lower())
        if row is None:
            if name.lower() not in _SPARKS_OWN:
                raise OptionError(f"there is no option {name}{_suggestion(name, names)}")
        elif use not in row.uses:
            raise OptionError(f"{row.name} is not for a {use} read")
        elif said.setdefault(row.field, value) != value:
            raise OptionError(f"{row.name} is given twice, under two names")
    options = ReadOptions(**{row.field: _value(row, said.get(row.field)) for row in OPTIONS})
    _check_together(options)
    return options


def _value(row: Option, raw: str | None) -> Any:
    raw = row.default if raw is None else raw.strip()
    if not raw and row.default is None:
        raise OptionError(f"{row.name} is required: {row.meaning}")
    assert raw is not None, "either given or with a default"
    try:
        return row.read(raw)
    except ValueError as error:
        raise OptionError(f"{row.name} must be {error}; it is {raw!r}") from None


def _suggestion(name: str, names: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; {names[close[0]].name} was meant, perhaps" if close else ""


def _check_together(options: ReadOptions) -> None:
    complaints: Iterable[tuple[bool, str]] = (
        (
            bool(options.lookupd_http_addresses) == bool(options.nsqd_tcp_addresses),
            "give either lookupdHttpAddresses or nsqdTcpAddresses",
        ),
        (
            bool(options.nsqd_http_addresses) and len(options.nsqd_http_addresses) != len(options.nsqd_tcp_addresses),
            "nsqdHttpAddresses must name as many as nsqdTcpAddresses, in the same order",
        ),
        (options.snappy and options.deflate, "snappy and deflate exclude each other; give one"),
        (
            0 < options.msg_timeout < 1,
            "msgTimeoutMs must be 0 (for nsqd's) or at least 1000",
        ),
        (
            bool(options.max_in_flight) and options.chunk_messages > options.max_in_flight,
            "chunkMessages must not be more than maxInFlight: more never come before some are finished",
        ),
        (
            not options.tls and bool(options.tls_ca_file or options.tls_cert_file or options.tls_skip_verify),
            "options of TLS are given, but not tls=true",
        ),
    )
    for wrong, complaint in complaints:
        if wrong:
            raise OptionError(complaint)
