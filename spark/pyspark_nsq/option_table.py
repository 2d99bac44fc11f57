"""The table of options: names, defaults, what their texts may be. The table in the guide is this one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark_nsq import kinds

STREAM: Final = "stream"
BATCH: Final = "batch"
WRITE: Final = "write"
STAGED: Final = "staged"
_READS: Final = (STREAM, BATCH)
_ALL: Final = (STREAM, BATCH, WRITE)


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
        "when so many have come, all that are there are spooled and finished together; 0: half of those",
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
