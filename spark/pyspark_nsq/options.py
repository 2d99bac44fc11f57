"""What a user may write in ``.option(...)``: one table, from which options are read, checked and complained about.

Names are camelCase and not case-sensitive, as Spark's are; pynsq's names are taken as well. Every complaint names the
option and says what to write instead, and comes before anything is consumed.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from nsq_compat.protocol.compression import SNAPPY_INSTALLED, SNAPPY_MISSING
from pyspark_nsq import kinds

STREAM: Final = "stream"
BATCH: Final = "batch"
WRITE: Final = "write"
STAGED: Final = "staged"
_READS: Final = (STREAM, BATCH)
_ALL: Final = (STREAM, BATCH, WRITE)
_SAID: Final = {STREAM: "a stream read", BATCH: "a batch read", WRITE: "writing"}

SPECULATION: Final = (
    "spark.speculation must be false (spark-submit --conf spark.speculation=false): a second attempt at a task would "
    "take messages that belong to no batch"
)
"""What a session is told that runs tasks twice on purpose."""

# What Spark itself puts among the options, or takes from them.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})


class OptionError(ValueError):
    """An option is missing or wrong; the text is for the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """What belongs to every connection. Times in seconds; `msg_timeout` 0 is nsqd's own."""

    nsqd_tcp_addresses: tuple[str, ...]
    msg_timeout: float
    connect_timeout: float
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    tls_skip_verify: bool
    auth_secret: str
    snappy: bool
    deflate: bool
    deflate_level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions(ConnectionOptions):
    """The options of reading, checked. Times in seconds; 0 in `max_in_flight` and `chunk_messages` is what nsqd allows
    and half of that; in `min_partitions` and `max_messages` "no such wish"; None in `keep_spool` for ever."""

    topics: tuple[str, ...]
    channel: str
    lookupd_http_addresses: tuple[str, ...]
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
    suppress_redelivered: bool
    suspect_ttl: float
    spool_retain_batches: int
    spool_retain: float
    keep_spool: float | None
    fail_on_data_loss: bool
    fail_on_unreachable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions(ConnectionOptions):
    """The options of writing, checked. `topic` may be empty: then every row has its own."""

    topic: str
    mpub_messages: int
    mpub_bytes: int
    mpub_window: int
    publish_mode: str
    staging_dir: str
    staging_parent: str

    @property
    def is_staged(self) -> bool:
        return self.publish_mode == STAGED


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `default` is written as a user would; None: the option is required."""

    name: str
    field: str
    read: Callable[[str], Any]
    default: str | None
    meaning: str
    uses: tuple[str, ...] = _READS
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option("subscribe", "topics", kinds.topics, None, "topics, several with commas", aliases=("topic",)),
    Option("channel", "channel", kinds.channel, None, "the channel; one for each query"),
    Option(
        "lookupdHttpAddresses",
        "lookupd_http_addresses",
        kinds.http_addresses,
        "",
        "nsqlookupd to ask which nsqd have the topics",
        aliases=("lookupd_http_addresses",),
    ),
    Option(
        "nsqdTcpAddresses",
        "nsqd_tcp_addresses",
        kinds.addresses,
        "",
        "nsqd to read, instead of asking nsqlookupd; nsqd to publish to",
        _ALL,
        aliases=("nsqd_tcp_addresses",),
    ),
    Option(
        "nsqdHttpAddresses",
        "nsqd_http_addresses",
        kinds.http_addresses,
        "",
        "the HTTP addresses of `nsqdTcpAddresses`, in the same order; without them every trigger plans blindly",
        aliases=("nsqd_http_addresses",),
    ),
    Option("spoolDir", "spool_dir", kinds.text, None, "a folder that the driver and all executors share"),
    Option("createChannel", "create_channel", kinds.flag, "true", "create the channel on every nsqd at the start"),
    Option(
        "maxMessagesPerTrigger",
        "max_messages_per_trigger",
        kinds.whole(1),
        "500000",
        "at most so many messages in a micro-batch",
        (STREAM,),
        ("maxOffsetsPerTrigger",),
    ),
    Option(
        "maxMessages", "max_messages", kinds.whole(0), "0", "at most so many messages; 0 for all that wait", (BATCH,)
    ),
    Option(
        "maxMessagesPerPartition",
        "max_messages_per_partition",
        kinds.whole(1),
        "200000",
        "at most so many messages in a task",
    ),
    Option(
        "partitionsPerNsqd", "partitions_per_nsqd", kinds.whole(1, 1024), "1", "connections, and tasks, for each nsqd"
    ),
    Option(
        "minPartitions",
        "min_partitions",
        kinds.whole(0, 4096),
        "0",
        "at least so many tasks, if there are messages enough",
    ),
    Option(
        "maxInFlight",
        "max_in_flight",
        kinds.whole(0),
        "0",
        "messages in flight on a connection; 0 for as many as nsqd allows",
        aliases=("max_in_flight",),
    ),
    Option(
        "chunkMessages",
        "chunk_messages",
        kinds.whole(0),
        "0",
        "messages spooled and finished together; 0: half of those",
    ),
    Option("idleTimeoutMs", "idle_timeout", kinds.milliseconds(1), "300", "a task ends when so long no message came"),
    Option("maxReadMs", "max_read", kinds.milliseconds(1), "10000", "a task reads no longer than this"),
    Option(
        "pollIntervalMs",
        "poll_interval",
        kinds.milliseconds(0),
        "200",
        "least time between two looks at the backlog",
        (STREAM,),
    ),
    Option(
        "lookupIntervalMs",
        "lookup_interval",
        kinds.milliseconds(0),
        "15000",
        "least time between two questions to nsqlookupd",
    ),
    Option(
        "connectTimeoutMs",
        "connect_timeout",
        kinds.milliseconds(1),
        "5000",
        "for connecting, and for each answer",
        _ALL,
    ),
    Option(
        "msgTimeoutMs",
        "msg_timeout",
        kinds.milliseconds(0),
        "0",
        "after a crash messages come again so much later; 0: nsqd's",
    ),
    Option("suppressRedelivered", "suppress_redelivered", kinds.flag, "true", "drop what comes again after a crash"),
    Option("suspectTtlMs", "suspect_ttl", kinds.milliseconds(0), "86400000", "how long that is remembered"),
    Option(
        "spoolRetainBatches",
        "spool_retain_batches",
        kinds.whole(0),
        "1",
        "committed batches that stay in the spool",
        (STREAM,),
    ),
    Option(
        "spoolRetainMs",
        "spool_retain",
        kinds.milliseconds(0),
        "10000",
        "they stay at least so long: what an nsqd that was killed gives out again is known by them",
        (STREAM,),
    ),
    Option(
        "keepSpool",
        "keep_spool",
        kinds.keeping,
        "true",
        "how long a spool without `ack` stays: `true`, or milliseconds; the next batch read deletes it",
        (BATCH,),
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        kinds.flag,
        "true",
        "fail if a batch is wanted again and its spool is gone",
    ),
    Option("failOnUnreachable", "fail_on_unreachable", kinds.flag, "false", "fail if an nsqd cannot be reached"),
    Option(
        "tls",
        "tls",
        kinds.flag,
        "false",
        "TLS; without it on nsqd's side there is no connection",
        _ALL,
        aliases=("tls_v1",),
    ),
    Option("tlsCaFile", "tls_ca_file", kinds.text, "", "authorities to trust, instead of the system's", _ALL),
    Option("tlsCertFile", "tls_cert_file", kinds.text, "", "client certificate", _ALL),
    Option("tlsKeyFile", "tls_key_file", kinds.text, "", "its key, if it is not in the same file", _ALL),
    Option("tlsSkipVerify", "tls_skip_verify", kinds.flag, "false", "trust everybody", _ALL),
    Option(
        "authSecret",
        "auth_secret",
        kinds.text,
        "",
        "said when nsqd asks for authorization",
        _ALL,
        aliases=("auth_secret",),
    ),
    Option("snappy", "snappy", kinds.flag, "false", "compression", _ALL),
    Option("deflate", "deflate", kinds.flag, "false", "compression", _ALL),
    Option("deflateLevel", "deflate_level", kinds.whole(1, 9), "6", "1 to 9", _ALL, aliases=("deflate_level",)),
    Option("topic", "topic", kinds.topic, "", "the topic of rows that have no column of that name", (WRITE,)),
    Option(
        "mpubMessages",
        "mpub_messages",
        kinds.whole(1),
        "5000",
        "at most so many messages are published together",
        (WRITE,),
    ),
    Option(
        "mpubBytes",
        "mpub_bytes",
        kinds.whole(1),
        "1048576",
        "and so many bytes: less than nsqd's --max-body-size",
        (WRITE,),
    ),
    Option(
        "mpubWindow",
        "mpub_window",
        kinds.whole(1, 1024),
        "4",
        "so many of these are sent before nsqd has answered",
        (WRITE,),
    ),
    Option(
        "publishMode",
        "publish_mode",
        kinds.one_of("direct", STAGED),
        "direct",
        "`direct`: tasks publish; `staged`: they write files, which the driver publishes once",
        (WRITE,),
    ),
    Option(
        "stagingDir",
        "staging_dir",
        kinds.text,
        "",
        "where these files are: a folder that the driver and all executors share",
        (WRITE,),
    ),
    Option(
        "spoolDir", "staging_parent", kinds.text, "", "without `stagingDir`, they are in its folder `staging`", (WRITE,)
    ),
)


def read_options(given: Mapping[str, str], use: str) -> ReadOptions:
    """The options of a streaming or batch read. Raises ``OptionError``."""
    options = ReadOptions(**_values(given, use, ReadOptions))
    _complain(_of_connections(options), _of_reading(options))
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of writing, as a stream or not. Raises ``OptionError``."""
    options = WriteOptions(**_values(given, WRITE, WriteOptions))
    _complain(_of_connections(options), _of_writing(options))
    return options


def _values(given: Mapping[str, str], use: str, wanted: type[ReadOptions] | type[WriteOptions]) -> dict[str, Any]:
    # A name may mean one thing to who reads and another to who writes: the one for this use comes last.
    rows = sorted(OPTIONS, key=lambda row: use in row.uses)
    names = {name.lower(): row for row in rows for name in (row.name, *row.aliases)}
    said: dict[str, str] = {}
    for name, value in given.items():
        row = names.get(name.lower())
        if row is None:
            if name.lower() not in _SPARKS_OWN:
                raise OptionError(f"there is no option {name}{_suggestion(name, names)}")
        elif use not in row.uses:
            raise OptionError(f"{row.name} is not for {_SAID[use]}")
        elif said.setdefault(row.field, value) != value:
            raise OptionError(f"{row.name} is given twice, under two names")
    needed = {field.name for field in fields(wanted)}
    return {row.field: _value(row, said.get(row.field)) for row in OPTIONS if row.field in needed}


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


_Rules = Iterable[tuple[bool, str]]


def _complain(*rules: _Rules) -> None:
    for each in rules:
        for wrong, complaint in each:
            if wrong:
                raise OptionError(complaint)


def _of_connections(options: ConnectionOptions) -> _Rules:
    yield options.snappy and options.deflate, "snappy and deflate exclude each other; give one"
    yield options.snappy and not SNAPPY_INSTALLED, SNAPPY_MISSING
    about_tls = options.tls_ca_file or options.tls_cert_file or options.tls_skip_verify
    yield bool(about_tls) and not options.tls, "options of TLS are given, but not tls=true"


def _of_reading(options: ReadOptions) -> _Rules:
    fixed, over_http = options.nsqd_tcp_addresses, options.nsqd_http_addresses
    yield bool(options.lookupd_http_addresses) == bool(fixed), "give either lookupdHttpAddresses or nsqdTcpAddresses"
    yield (
        bool(over_http) and len(over_http) != len(fixed),
        "nsqdHttpAddresses must name as many as nsqdTcpAddresses, in the same order",
    )
    yield 0 < options.msg_timeout < 1, "msgTimeoutMs must be 0 (for nsqd's) or at least 1000"
    yield (
        0 < options.max_in_flight < options.chunk_messages,
        "chunkMessages must not be more than maxInFlight: more never come before some are finished",
    )


def _of_writing(options: WriteOptions) -> _Rules:
    yield not options.nsqd_tcp_addresses, "nsqdTcpAddresses is required: the nsqd to publish to"
    folder = options.staging_dir or options.staging_parent
    yield (
        options.is_staged and not folder,
        "publishMode=staged needs stagingDir, or spoolDir: a folder that the driver and all executors share",
    )
    yield bool(folder) and not options.is_staged, "stagingDir and spoolDir are for publishMode=staged, when writing"
