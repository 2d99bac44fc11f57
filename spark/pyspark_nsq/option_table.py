"""The table of options: names, defaults, parsers and meanings. The table in docs/spark.md equals it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark_nsq import option_parsers

STREAM: Final = "stream"
BATCH: Final = "batch"
WRITE: Final = "write"
STAGED: Final = "staged"
LOG: Final = "log"
SPOOL: Final = "spool"
AUTO: Final = "auto"
_READS: Final = (STREAM, BATCH)
_ALL: Final = (STREAM, BATCH, WRITE)


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `default` is text, as a user would write it; None if the option is required."""

    name: str
    field: str
    read: Callable[[str], Any]
    default: str | None
    meaning: str
    uses: tuple[str, ...] = _READS
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option(
        "mode",
        "mode",
        option_parsers.choice(AUTO, LOG, SPOOL),
        AUTO,
        "`log`: read by offset what nsqd retains; `spool`: receive from a channel; `auto`: `log` if every nsqd retains "
        "the topics",
    ),
    Option("subscribe", "topics", option_parsers.topics, "", "topics to read, separated by commas", aliases=("topic",)),
    Option(
        "subscribePattern",
        "topic_pattern",
        option_parsers.pattern,
        "",
        "read all topics whose whole names match this regular expression, instead of `subscribe`",
    ),
    Option("channel", "channel", option_parsers.channel, "", "channel to read; use one for each query (spool)"),
    Option(
        "lookupdHttpAddresses",
        "lookupd_http_addresses",
        option_parsers.daemon_http_addresses,
        "",
        "nsqlookupd, with TLS if they begin with https://, to ask for the nsqd that have the topics; for all its nsqd, "
        "to publish to",
        _ALL,
        aliases=("lookupd_http_addresses",),
    ),
    Option(
        "nsqdTcpAddresses",
        "nsqd_tcp_addresses",
        option_parsers.addresses,
        "",
        "nsqd to read from, instead of asking nsqlookupd; nsqd to publish to",
        _ALL,
        aliases=("nsqd_tcp_addresses",),
    ),
    Option(
        "nsqdHttpAddresses",
        "nsqd_http_addresses",
        option_parsers.daemon_http_addresses,
        "",
        "nsqd to read from (log), with TLS if they begin with https://; the HTTP addresses of `nsqdTcpAddresses`, in "
        "the same order (spool)",
        aliases=("nsqd_http_addresses",),
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        option_parsers.starting_offsets,
        "",
        "where a new query begins (log): `earliest`, `latest`, or JSON; by default a stream begins at the latest, a "
        "batch at the earliest",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        option_parsers.timestamp,
        "",
        "begin with the first message published at this time or later, in milliseconds since 1970 (log)",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "by_timestamp_strategy",
        option_parsers.choice("error", "latest"),
        "error",
        "if there is no such message: fail, or begin at the latest (log)",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        option_parsers.ending_offsets,
        "",
        "where to end (log): `latest`, which is the default, or JSON",
        (BATCH,),
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        option_parsers.timestamp,
        "",
        "end before the first message published at this time or later, in milliseconds since 1970 (log)",
        (BATCH,),
    ),
    Option(
        "spoolDir", "spool_dir", option_parsers.text, "", "a folder that the driver and all executors share (spool)"
    ),
    Option(
        "spoolName",
        "spool_name",
        option_parsers.name,
        "",
        "name of the spool (spool): a read with the same name has the same rows until `ack`, also in another program",
        (BATCH,),
    ),
    Option(
        "createChannel",
        "create_channel",
        option_parsers.boolean,
        "true",
        "create the channel on every nsqd at the start",
    ),
    Option(
        "maxMessagesPerTrigger",
        "max_messages_per_trigger",
        option_parsers.integer(1),
        "500000",
        "most messages in a micro-batch",
        (STREAM,),
        ("maxOffsetsPerTrigger",),
    ),
    Option(
        "minMessagesPerTrigger",
        "min_messages_per_trigger",
        option_parsers.integer(0),
        "0",
        "hold a micro-batch back until so many messages wait",
        (STREAM,),
        ("minOffsetsPerTrigger",),
    ),
    Option(
        "maxTriggerDelay",
        "max_trigger_delay",
        option_parsers.duration,
        "15m",
        "hold it back for this time at most, such as `15m` or `90s`",
        (STREAM,),
    ),
    Option(
        "availableNow",
        "available_now",
        option_parsers.boolean,
        "false",
        "offer no message that arrives after the start: for Spark 4.0 and 4.1, which pass the trigger to no Python "
        "source",
        (STREAM,),
    ),
    Option(
        "maxMessages",
        "max_messages",
        option_parsers.integer(0),
        "0",
        "most messages to read; 0 for all that wait",
        (BATCH,),
    ),
    Option(
        "maxMessagesPerPartition",
        "max_messages_per_partition",
        option_parsers.integer(1),
        "200000",
        "most messages in a task",
        aliases=("maxRecordsPerPartition",),
    ),
    Option(
        "maxBytesPerPartition",
        "max_bytes_per_partition",
        option_parsers.integer(1, 2**63 - 1),
        "134217728",
        "most bytes in a task, estimated from the mean size of the topic's messages (log)",
    ),
    Option(
        "partitionsPerNsqd",
        "partitions_per_nsqd",
        option_parsers.integer(1, 1024),
        "1",
        "connections, and tasks, for each nsqd",
    ),
    Option(
        "minPartitions",
        "min_partitions",
        option_parsers.integer(0, 4096),
        "0",
        "minimum number of tasks, if there are enough messages",
    ),
    Option(
        "maxInFlight",
        "max_in_flight",
        option_parsers.integer(0),
        "0",
        "messages in flight on a connection; 0 for as many as nsqd allows",
        aliases=("max_in_flight",),
    ),
    Option(
        "chunkMessages",
        "chunk_messages",
        option_parsers.integer(0),
        "0",
        "messages to collect before they are spooled and finished together; 0 for half of `maxInFlight`",
    ),
    Option(
        "idleTimeoutMs",
        "idle_timeout",
        option_parsers.milliseconds(1),
        "300",
        "a task ends when no message arrives for this time",
    ),
    Option(
        "maxReadMs",
        "max_read",
        option_parsers.milliseconds(1),
        "10000",
        "a task reads no longer than this, and the next batch the rest; a batch read has no limit unless this is given",
    ),
    Option(
        "pollIntervalMs",
        "poll_interval",
        option_parsers.milliseconds(0),
        "200",
        "minimum time between two queries of the backlog",
        (STREAM,),
    ),
    Option(
        "lookupIntervalMs",
        "lookup_interval",
        option_parsers.milliseconds(0),
        "15000",
        "minimum time between two queries of nsqlookupd",
    ),
    Option(
        "connectTimeoutMs",
        "connect_timeout",
        option_parsers.milliseconds(1),
        "5000",
        "time for connecting, and for each answer",
        _ALL,
    ),
    Option(
        "msgTimeoutMs",
        "msg_timeout",
        option_parsers.milliseconds(0),
        "0",
        "message timeout, after which messages are delivered again after a crash; 0 for nsqd's",
    ),
    Option(
        "suppressRedelivered",
        "suppress_redelivered",
        option_parsers.boolean,
        "true",
        "drop messages that are delivered again after a crash",
    ),
    Option(
        "suspectTtlMs", "suspect_ttl", option_parsers.milliseconds(0), "86400000", "how long to recognize such messages"
    ),
    Option(
        "spoolRetainBatches",
        "spool_retain_batches",
        option_parsers.integer(0),
        "1",
        "number of committed batches that stay in the spool",
        (STREAM,),
    ),
    Option(
        "spoolRetainMs",
        "spool_retain",
        option_parsers.milliseconds(0),
        "10000",
        "minimum time that they stay, or twice `lookupIntervalMs` if that is longer and nsqlookupd is asked; their ids "
        "show which messages a killed nsqd delivers again",
        (STREAM,),
    ),
    Option(
        "keepSpool",
        "keep_spool",
        option_parsers.retention,
        "true",
        "how long a spool without `ack` stays: `true`, or milliseconds; the next batch read deletes it",
        (BATCH,),
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        option_parsers.boolean,
        "true",
        "fail if messages are gone: released before they were read (log), or with the spool of a repeated batch",
    ),
    Option(
        "failOnUnreachable", "fail_on_unreachable", option_parsers.boolean, "false", "fail if an nsqd cannot be reached"
    ),
    Option(
        "tls",
        "tls",
        option_parsers.boolean,
        "false",
        "use TLS; connecting fails if nsqd has no TLS",
        _ALL,
        aliases=("tls_v1",),
    ),
    Option("tlsCaFile", "tls_ca_file", option_parsers.text, "", "authorities to trust, instead of the system's", _ALL),
    Option("tlsCertFile", "tls_cert_file", option_parsers.text, "", "client certificate", _ALL),
    Option("tlsKeyFile", "tls_key_file", option_parsers.text, "", "its key, if it is not in the same file", _ALL),
    Option("tlsSkipVerify", "tls_skip_verify", option_parsers.boolean, "false", "accept any certificate", _ALL),
    Option(
        "authSecret",
        "auth_secret",
        option_parsers.text,
        "",
        "secret or token to send if nsqd asks for authorization, and to nsqlookupd",
        _ALL,
        aliases=("auth_secret",),
    ),
    Option("authSecretFile", "auth_secret_file", option_parsers.text, "", "file of the driver with the secret", _ALL),
    Option("snappy", "snappy", option_parsers.boolean, "false", "use snappy compression", _ALL),
    Option("deflate", "deflate", option_parsers.boolean, "false", "use deflate compression", _ALL),
    Option(
        "deflateLevel",
        "deflate_level",
        option_parsers.integer(1, 9),
        "6",
        "level of deflate, 1 to 9",
        _ALL,
        aliases=("deflate_level",),
    ),
    Option("topic", "topic", option_parsers.topic, "", "the topic of rows that have no column of that name", (WRITE,)),
    Option(
        "ignoreColumns",
        "ignore_columns",
        option_parsers.names,
        "",
        "columns that are not published, separated by commas, such as `key,headers`",
        (WRITE,),
    ),
    Option(
        "mpubMessages",
        "mpub_messages",
        option_parsers.integer(1),
        "5000",
        "most messages to publish together",
        (WRITE,),
    ),
    Option(
        "mpubBytes",
        "mpub_bytes",
        option_parsers.integer(1),
        "1048576",
        "most bytes to publish together: less than nsqd's --max-body-size",
        (WRITE,),
    ),
    Option(
        "mpubWindow",
        "mpub_window",
        option_parsers.integer(1, 1024),
        "4",
        "batches to send before nsqd has answered",
        (WRITE,),
    ),
    Option(
        "publishMode",
        "publish_mode",
        option_parsers.choice("direct", STAGED),
        "direct",
        "`direct`: tasks publish; `staged`: they write files, which the driver publishes once",
        (WRITE,),
    ),
    Option(
        "stagingDir",
        "staging_dir",
        option_parsers.text,
        "",
        "folder for these files, which the driver and all executors share",
        (WRITE,),
    ),
    Option(
        "spoolDir",
        "staging_parent",
        option_parsers.text,
        "",
        "without `stagingDir`, these files are in its folder `staging`",
        (WRITE,),
    ),
)
