"""Validation of ``.option(...)``, by the table in `option_table`.

Names are camelCase and case-insensitive, as Spark's are; pynsq's names are accepted too. Every error names the option
and the expected value, and is raised before messages are consumed.
"""

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from nsq_compat.protocol.compression import SNAPPY_INSTALLED, SNAPPY_MISSING
from pyspark_nsq.option_parsers import Positions
from pyspark_nsq.option_table import BATCH, LOG, OPTIONS, SPOOL, STAGED, STREAM, WRITE, Option

_SECRET_VARIABLE: Final = "PYSPARK_NSQ_AUTH_SECRET"
"""Of the environment of the driver."""
_USE_NAMES: Final = {STREAM: "a stream read", BATCH: "a batch read", WRITE: "writing"}

SPECULATION: Final = (
    "spark.speculation must be false with mode=spool (spark-submit --conf spark.speculation=false): a second attempt "
    "at a task would take messages that belong to no batch"
)
"""The error for speculative execution."""

# Options that Spark itself adds or uses.
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname"})


class OptionError(ValueError):
    """An option is missing or wrong; the text is for the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """The options of every connection. Times are in seconds; `msg_timeout` 0 means nsqd's own."""

    nsqd_tcp_addresses: tuple[str, ...]
    msg_timeout: float
    connect_timeout: float
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    tls_skip_verify: bool
    auth_secret: str = field(repr=False)
    snappy: bool
    deflate: bool
    deflate_level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions(ConnectionOptions):
    """The validated options of reading. Times are in seconds, `starting_timestamp` and `ending_timestamp` in
    milliseconds since 1970.

    0 means nsqd's maximum in `max_in_flight`, half of that in `chunk_messages`, and no limit in `min_partitions` and
    `max_messages`. None in `keep_spool` means for ever. Either `topics` or `topic_pattern` is given.
    """

    mode: str
    topics: tuple[str, ...]
    topic_pattern: re.Pattern[str] | None
    channel: str
    starting_offsets: str | Positions
    starting_timestamp: int | None
    by_timestamp_strategy: str
    ending_offsets: str | Positions
    ending_timestamp: int | None
    max_bytes_per_partition: int
    lookupd_http_addresses: tuple[str, ...]
    nsqd_http_addresses: tuple[str, ...]
    spool_dir: str
    spool_name: str
    create_channel: bool
    max_messages_per_trigger: int
    min_messages_per_trigger: int
    max_trigger_delay: float
    available_now: bool
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
    """The validated options of writing. If `topic` is empty, every row has a topic."""

    topic: str
    ignore_columns: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    mpub_messages: int
    mpub_bytes: int
    mpub_window: int
    publish_mode: str
    staging_dir: str
    staging_parent: str

    @property
    def is_staged(self) -> bool:
        return self.publish_mode == STAGED


def read_options(given: Mapping[str, str], use: str) -> ReadOptions:
    """Parse the options of a streaming or batch read. Raises ``OptionError``."""
    options = ReadOptions(**_values(given, use, ReadOptions))
    _check(_of_connections(options), _of_reading(options))
    if use == BATCH and not any(name.lower() == "maxreadms" for name in given):
        # No batch follows that would read the rest.
        options = replace(options, max_read=math.inf)
    if options.mode == SPOOL:
        require_spool_options(options)
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a streaming or batch write. Raises ``OptionError``."""
    options = WriteOptions(**_values(given, WRITE, WriteOptions))
    _check(_of_connections(options), _of_writing(options))
    return options


def _values(given: Mapping[str, str], use: str, wanted: type[ReadOptions] | type[WriteOptions]) -> dict[str, Any]:
    # A name may belong to one option for reading and to another for writing; rows for this use sort last and win.
    rows = sorted(OPTIONS, key=lambda row: use in row.uses)
    names = {name.lower(): row for row in rows for name in (row.name, *row.aliases)}
    texts: dict[str, str] = {}
    for name, value in given.items():
        row = names.get(name.lower())
        if row is None:
            if name.lower() not in _SPARK_OPTIONS:
                raise OptionError(f"there is no option {name}{_suggestion(name, names)}")
        elif use not in row.uses:
            raise OptionError(f"{row.name} is not for {_USE_NAMES[use]}")
        elif texts.setdefault(row.field, value) != value:
            raise OptionError(f"{row.name} is given twice, under two names")
    if not texts:
        raise OptionError(
            "no option is set. Spark passes the OPTIONS of a table that has columns in CREATE TABLE to no Python data "
            "source: leave the columns out, or add WITH ('name' = 'value') to the name of the table in the query"
        )
    _read_secret(texts)
    needed = {each.name for each in fields(wanted)}
    return {row.field: _value(row, texts.get(row.field)) for row in OPTIONS if row.field in needed}


def _read_secret(texts: dict[str, str]) -> None:
    """Set the secret from `authSecretFile`, or else from the environment."""
    path = texts.pop("auth_secret_file", "").strip()
    if not path:
        if _SECRET_VARIABLE in os.environ:
            texts.setdefault("auth_secret", os.environ[_SECRET_VARIABLE])
        return
    if "auth_secret" in texts:
        raise OptionError("set either authSecret or authSecretFile")
    try:
        with open(path, encoding="utf-8") as file:
            texts["auth_secret"] = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise OptionError(f"authSecretFile: cannot read {path}: {reason}") from None


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
    return f"; did you mean {names[close[0]].name}?" if close else ""


_Rules = Iterable[tuple[bool, str]]
_NO_USER: Final = "addresses have no user and password, which logs and progress would show; use authSecret"


def _check(*rules: _Rules) -> None:
    for each in rules:
        for violated, error in each:
            if violated:
                raise OptionError(error)


def _of_connections(options: ReadOptions | WriteOptions) -> _Rules:
    yield options.snappy and options.deflate, "snappy and deflate cannot be combined; set one of them"
    yield options.snappy and not SNAPPY_INSTALLED, SNAPPY_MISSING
    about_tls = options.tls_ca_file or options.tls_cert_file or options.tls_skip_verify
    uses_tls = options.tls or any(each.startswith("https://") for each in options.lookupd_http_addresses)
    yield bool(about_tls) and not uses_tls, "TLS options need tls=true, or lookupdHttpAddresses with https://"
    addresses = (*options.nsqd_tcp_addresses, *options.lookupd_http_addresses)
    yield any("@" in each for each in addresses), _NO_USER


def require_spool_options(options: ReadOptions) -> None:
    """Raise ``OptionError`` if an option is missing that reading from a channel needs."""
    why = "" if options.mode == SPOOL else ", because not every nsqd retains the topics (mode=log)"
    _check((not value, f"{name} is required{why}") for name, value in _needed_by_the_spool(options))


def _needed_by_the_spool(options: ReadOptions) -> Iterable[tuple[str, object]]:
    yield "channel", options.channel
    yield "spoolDir", options.spool_dir
    yield "nsqdTcpAddresses", options.nsqd_tcp_addresses or options.lookupd_http_addresses
    yield "subscribe", options.topics


def _of_reading(options: ReadOptions) -> _Rules:
    fixed, over_http = options.nsqd_tcp_addresses, options.nsqd_http_addresses
    yield any("@" in each for each in over_http), _NO_USER
    yield not (options.topics or options.topic_pattern), "subscribe is required: topics to read, separated by commas"
    yield bool(options.topics and options.topic_pattern), "set either subscribe or subscribePattern"
    yield (
        bool(options.lookupd_http_addresses) == bool(fixed or over_http),
        "set either lookupdHttpAddresses or nsqdTcpAddresses or nsqdHttpAddresses",
    )
    yield (
        bool(over_http and fixed) and len(over_http) != len(fixed),
        "nsqdHttpAddresses must have an address for each of nsqdTcpAddresses, in the same order",
    )
    yield (
        options.mode == LOG and bool(fixed) and not over_http,
        "mode=log reads over HTTP: set nsqdHttpAddresses, or lookupdHttpAddresses",
    )
    with_tls = [each.startswith("https://") for each in over_http]
    yield any(with_tls) and not options.tls, "nsqdHttpAddresses with https:// need tls=true"
    yield (
        options.mode == LOG and options.tls and not (with_tls and all(with_tls)),
        "mode=log with tls=true needs nsqdHttpAddresses that begin with https://; nsqlookupd does not know these ports",
    )
    yield (
        bool(options.starting_offsets) and options.starting_timestamp is not None,
        "set either startingOffsets or startingTimestamp",
    )
    yield (
        bool(options.ending_offsets) and options.ending_timestamp is not None,
        "set either endingOffsets or endingTimestamp",
    )
    yield (
        options.min_messages_per_trigger > options.max_messages_per_trigger,
        "minMessagesPerTrigger must not be greater than maxMessagesPerTrigger",
    )
    yield 0 < options.msg_timeout < 1, "msgTimeoutMs must be 0 (for nsqd's) or at least 1000"
    yield (
        0 < options.max_in_flight < options.chunk_messages,
        "chunkMessages must not be greater than maxInFlight: nsqd never sends more before some are finished",
    )


def _of_writing(options: WriteOptions) -> _Rules:
    yield (
        bool(options.nsqd_tcp_addresses) == bool(options.lookupd_http_addresses),
        "set either nsqdTcpAddresses, the nsqd to publish to, or lookupdHttpAddresses, to find them",
    )
    folder = options.staging_dir or options.staging_parent
    yield (
        options.is_staged and not folder,
        "publishMode=staged needs stagingDir, or spoolDir: a folder that the driver and all executors share",
    )
    yield bool(folder) and not options.is_staged, "stagingDir and spoolDir are for publishMode=staged, when writing"
