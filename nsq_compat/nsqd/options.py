"""nsqd's options: names, types and defaults are NSQ's, so that its command lines and config files keep working.

The dataclass is the table (see `nsq_compat.cli.options`): an attribute is named as its config key, durations are
integer nanoseconds, lists are tuples. `log_level` and `nsqlookupd_tcp_addresses` may change while the daemon runs. The
two broadcast ports and `statsd_prefix` are completed once, by `complete`, when the listeners are bound.
"""

from dataclasses import dataclass
from socket import gethostname
from typing import Final

from nsq_compat.cli.kinds import (
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGER,
    STRING,
    TLS_MIN_VERSION,
    TLS_NOT_REQUIRED,
    TLS_REQUIRED,
    TLS_REQUIREMENT,
    TLS_VERSIONS,
    OptionError,
    choice,
)
from nsq_compat.cli.options import DaemonOptions, node_id, option, repeated
from nsq_compat.log.storage import Durability
from nsq_compat.policy.access import is_token
from nsq_compat.protocol.durations import HOUR, MILLISECOND, MINUTE, SECOND, parse_duration
from nsq_compat.protocol.errors import hidden, without_secrets

PROGRAM: Final = "nsqd"
STOP: Final = "stop"
DRAIN: Final = "drain"
SYNC: Final = "sync"
REFUSE: Final = "refuse"
MANUAL: Final = "manual"
TOPOLOGY_AWARE_CONSUMPTION: Final = "topology-aware-consumption"


@dataclass(slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """The options of one nsqd. `NsqdOptions()` has the defaults; keyword arguments are config keys."""

    id: int = option(
        INTEGER,
        lambda: node_id(gethostname()),
        "number that makes message ids unique among nodes, in [0,1024); by default derived from the host name",
        flag="node-id",
    )
    sigterm: str = option(choice(STOP, DRAIN), STOP, "what SIGTERM does: stop, or drain (a second one stops)")
    drain_timeout: int = option(
        DURATION, 5 * MINUTE, "how long a drain waits for consumers before nsqd stops; 0s for no limit"
    )
    log_prefix: str = option(STRING, "[nsqd] ", "text at the start of every log line")
    worker_id: bool = option(BOOLEAN, False, "deprecated and ignored: use --node-id", in_file=False)

    # Addresses to listen on, and to announce.
    tcp_address: str = option(
        STRING, "0.0.0.0:4150", "where TCP clients connect: host:port, or the path of a unix socket"
    )
    http_address: str = option(
        STRING, "0.0.0.0:4151", "where HTTP clients connect: host:port, the path of a unix socket, or empty for no HTTP"
    )
    https_address: str = option(
        STRING, "0.0.0.0:4152", "where HTTPS clients connect: host:port; needs --tls-cert and --tls-key"
    )
    broadcast_address: str = option(
        STRING, gethostname, "host that nsqlookupd and /info give to clients; by default the host name"
    )
    broadcast_tcp_port: int = option(
        INTEGER, 0, "TCP port that nsqlookupd and /info give to clients; by default the bound one"
    )
    broadcast_http_port: int = option(
        INTEGER, 0, "HTTP port that nsqlookupd and /info give to clients; by default the bound one"
    )
    busy_poll_time: int = option(
        DURATION,
        0,
        "how long to poll for the next command of a TCP client without sleeping, which takes a CPU;"
        " by default nsqd polls only where that saves more than it costs",
    )

    # Other services.
    nsqlookupd_tcp_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqlookupd to register with, or tls://host:port", flag="lookupd-tcp-address"
    )
    lookupd_tls_root_ca_file: str = option(
        STRING, "", "PEM file with the authorities of nsqlookupds with TLS; by default --tls-root-ca-file"
    )
    lookupd_tls_cert: str = option(
        STRING, "", "PEM file with the client certificate for nsqlookupds with TLS; by default --tls-cert"
    )
    lookupd_tls_key: str = option(
        STRING, "", "PEM file with the key of that certificate; by default --tls-key, or in --lookupd-tls-cert"
    )
    auth_http_addresses: tuple[str, ...] = repeated(
        "host:port or URL of a server that authorizes clients", flag="auth-http-address", secret=without_secrets
    )
    auth_http_request_method: str = option(STRING, "get", "how to ask the auth server: get or post")
    access_file: str = option(
        STRING, "", "file with the tokens that clients need, for AUTH and over HTTP (see nsq_access)"
    )
    cluster_token: str = option(
        STRING, "", "token for nsqlookupds with an access file; needs the permissions register and read", secret=hidden
    )
    http_publish_without_auth: bool = option(
        BOOLEAN, False, "allow publishing over HTTP although there are auth servers, which only authorize TCP clients"
    )
    http_client_connect_timeout: int = option(
        DURATION, 2 * SECOND, "time for connecting to auth servers and to nsqlookupd's HTTP"
    )
    http_client_request_timeout: int = option(
        DURATION, 5 * SECOND, "time for a whole request to auth servers and nsqlookupd's HTTP"
    )
    topology_region: str = option(STRING, "", "region this node runs in; a region holds one or more zones")
    topology_zone: str = option(STRING, "", "zone this node runs in; see --enable-experiment")

    # Queues in memory and on disk.
    data_path: str = option(STRING, "", "existing directory for messages and metadata; by default the current one")
    mem_queue_size: int = option(
        INTEGER, 10000, "messages that each topic and channel keeps in memory; a channel at most 50,000, or 16 MiB"
    )
    max_bytes_per_file: int = option(INTEGER, 100 * 1024 * 1024, "size in bytes at which a new data file begins")
    durability: str = option(
        choice(*(level.value for level in Durability)),
        Durability.OS.value,
        "what an acknowledged message survives: a clean stop (memory), a crash of nsqd (os), a power cut (fsync)",
    )
    sync_every: int = option(INTEGER, 2500, "accepted, without effect (Go's: messages between two syncs to disk)")
    sync_timeout: int = option(DURATION, 2 * SECOND, "time between two checkpoints of the channels' positions")
    queue_scan_worker_pool_max: int = option(
        INTEGER, 4, "accepted, without effect (Go's: workers that scan for due messages)"
    )
    queue_scan_selection_count: int = option(
        INTEGER, 20, "accepted, without effect (Go's: channels in one scan for due messages)"
    )

    # Mirroring.
    mirror_to: str = option(STRING, "", "host:port (TCP) of an nsqd that keeps a copy of all messages: the standby")
    mirror_mode: str = option(
        choice(SYNC, "async"), SYNC, "whether a publish waits until the standby has it (sync) or not (async)"
    )
    mirror_lost: str = option(
        choice("continue", REFUSE), "continue", "whether to accept messages while the standby is away, or refuse them"
    )
    mirror_timeout: int = option(DURATION, SECOND, "how long a publish waits for a standby that is away")
    mirror_tls: bool = option(
        BOOLEAN, False, "connect to the standby with TLS, checked with --tls-root-ca-file or the system's authorities"
    )
    mirror_auth_secret: str = option(STRING, "", "secret for AUTH at the standby", secret=hidden)
    mirror_compression: str = option(
        choice("none", "snappy", "deflate"), "none", "compression of the connection to the standby"
    )
    mirror_accept: bool = option(BOOLEAN, False, "be the standby of nsqds that connect with --mirror-to")
    mirror_takeover_after: str = option(
        STRING, "30s", "how long a primary is away before its topics are taken over: a duration, or manual"
    )

    # Messages and commands.
    msg_timeout: int = option(DURATION, MINUTE, "how long a consumer may keep a message before it is requeued")
    max_msg_timeout: int = option(DURATION, 15 * MINUTE, "upper limit of a message's timeout, touches included")
    max_msg_size: int = option(INTEGER, 1024 * 1024, "largest message in bytes")
    max_req_timeout: int = option(DURATION, HOUR, "longest delay of a requeued message")
    max_defer_timeout: int = option(DURATION, 0, "longest delay of a deferred publish; by default --max-req-timeout")
    max_body_size: int = option(INTEGER, 5 * 1024 * 1024, "largest body of one command in bytes")
    client_timeout: int = MINUTE
    """Not a flag: twice the heartbeat interval of a client that asks for none."""

    # Limits for what clients may ask for.
    max_heartbeat_interval: int = option(DURATION, MINUTE, "longest heartbeat interval a client may ask for")
    max_rdy_count: int = option(INTEGER, 2500, "highest RDY count a client may ask for")
    max_output_buffer_size: int = option(INTEGER, 64 * 1024, "largest output buffer in bytes a client may ask for")
    max_output_buffer_timeout: int = option(DURATION, 30 * SECOND, "longest output buffering a client may ask for")
    min_output_buffer_timeout: int = option(
        DURATION, 25 * MILLISECOND, "shortest output buffering a client may ask for"
    )
    output_buffer_timeout: int = option(
        DURATION, 250 * MILLISECOND, "longest output buffering for clients that ask for none"
    )
    max_channel_consumers: int = option(INTEGER, 0, "most consumers of one channel; by default unlimited")

    # statsd.
    statsd_address: str = option(STRING, "", "host:port (UDP) of a statsd to push statistics to")
    statsd_prefix: str = option(STRING, "nsq.%s", "prefix of every statsd key; %s becomes host and port of this node")
    statsd_interval: int = option(DURATION, MINUTE, "time between two pushes to statsd")
    statsd_mem_stats: bool = option(BOOLEAN, True, "also push memory statistics to statsd")
    statsd_udp_packet_size: int = option(INTEGER, 508, "largest packet in bytes sent to statsd")
    statsd_exclude_ephemeral: bool = option(
        BOOLEAN, False, "push nothing about ephemeral topics and channels to statsd"
    )

    # End-to-end latency.
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        FLOATS,
        (),
        "percentiles of processing time to track, each in (0,1], such as 0.99 (repeat, or separate by commas)",
        flag="e2e-processing-latency-percentile",
    )
    e2e_processing_latency_window_time: int = option(
        DURATION, 10 * MINUTE, "period that the percentiles of processing time cover"
    )

    metrics_max_names: int = option(
        INTEGER, 1000, "topics and channels with series of their own in /metrics; the others are added up"
    )

    # TLS.
    tls_cert: str = option(STRING, "", "PEM file with the certificate")
    tls_key: str = option(STRING, "", "PEM file with the certificate's key")
    tls_client_auth_policy: str = option(
        STRING, "", "ask clients for a certificate: 'require', or 'require-verify' to check it too"
    )
    tls_root_ca_file: str = option(STRING, "", "PEM file with the authorities that sign client certificates")
    tls_required: int = option(
        TLS_REQUIREMENT, TLS_NOT_REQUIRED, "refuse clients without TLS: true, false, or tcp-https to allow plain HTTP"
    )
    tls_min_version: int = option(
        TLS_MIN_VERSION, TLS_VERSIONS["tls1.0"], "oldest TLS version to accept: " + ", ".join(TLS_VERSIONS)
    )

    # Compression.
    deflate: bool = option(BOOLEAN, True, "let clients ask for deflate compression")
    max_deflate_level: int = option(INTEGER, 6, "highest deflate level a client may ask for, 1 to 9")
    snappy: bool = option(BOOLEAN, True, "let clients ask for snappy compression")

    enable_experiment: tuple[str, ...] = repeated(f"experiment to take part in: {TOPOLOGY_AWARE_CONSUMPTION}")

    def __post_init__(self) -> None:
        self.max_defer_timeout = self.max_defer_timeout or self.max_req_timeout
        # nsqd: any client policy, even an unknown one, makes TLS mandatory.
        if self.tls_client_auth_policy and self.tls_required == TLS_NOT_REQUIRED:
            self.tls_required = TLS_REQUIRED

    @property
    def publishing_over_http(self) -> bool:
        """Whether /pub and /mpub are open: auth servers only authorize TCP clients."""
        return self.http_publish_without_auth or not self.auth_http_addresses

    @property
    def peeking_over_http(self) -> bool:
        """Whether messages can be inspected over HTTP: not with auth servers, which only authorize TCP clients."""
        return not self.auth_http_addresses


def validate(options: NsqdOptions) -> None:
    """Refuse options that nsqd cannot run with. Raises OptionError with NSQ's text, in NSQ's order; does no I/O."""
    if not 1 <= options.max_deflate_level <= 9:
        raise OptionError("--max-deflate-level must be [1,9]")
    if not 0 <= options.id < 1024:
        raise OptionError("--node-id must be [0,1024)")
    if options.tls_required != TLS_NOT_REQUIRED and not (options.tls_cert or options.tls_key):
        raise OptionError("cannot require TLS client connections without TLS key and cert")
    if options.auth_http_request_method not in ("get", "post"):
        raise OptionError("--auth-http-request-method must be post or get")
    for percentile in options.e2e_processing_latency_percentiles:
        if not 0 < percentile <= 1:  # also refuses nan
            raise OptionError(f"invalid E2E processing latency percentile: {str(percentile).removesuffix('.0')}")
    if options.e2e_processing_latency_percentiles and options.e2e_processing_latency_window_time <= 0:
        raise OptionError("--e2e-processing-latency-window-time must be positive")  # NSQ hangs at its first FIN
    not_negative = ("mem_queue_size", "output_buffer_timeout", "busy_poll_time", "drain_timeout", "metrics_max_names")
    try:
        takeover_seconds(options)
    except ValueError as error:
        raise OptionError(f"--mirror-takeover-after: {error}") from None
    for refusal, is_wrong in (
        # NSQ starts with these and fails later, at its first topic, client or push.
        *((f"--{key.replace('_', '-')} must not be negative", getattr(options, key) < 0) for key in not_negative),
        ("--statsd-interval must be positive", options.statsd_address and options.statsd_interval <= 0),
        # NSQ scans for timeouts ten times a second; here every message would be late at once.
        ("--msg-timeout must be at least 1ms", options.msg_timeout < MILLISECOND),
        ("--mirror-timeout must be positive", options.mirror_timeout <= 0),
        (
            "--mirror-to needs --durability=os or fsync",
            options.mirror_to and options.durability == Durability.MEMORY.value,
        ),
        ("--cluster-token must be printable, without blanks", not is_token(options.cluster_token)),
        (
            "--access-file and --auth-http-address exclude each other",
            options.access_file and options.auth_http_addresses,
        ),
        ("--mirror-lost=refuse needs --mirror-to", options.mirror_lost == REFUSE and not options.mirror_to),
        # For NSQ, 0 means no limit.
        ("--http-client-connect-timeout must be positive", options.http_client_connect_timeout <= 0),
        ("--http-client-request-timeout must be positive", options.http_client_request_timeout <= 0),
    ):
        if is_wrong:
            raise OptionError(refusal)


def takeover_seconds(options: NsqdOptions) -> float | None:
    """--mirror-takeover-after in seconds; None for manual. Raises ``ValueError``."""
    return None if options.mirror_takeover_after == MANUAL else parse_duration(options.mirror_takeover_after) / SECOND


def complete(options: NsqdOptions, tcp_port: int, http_port: int) -> None:
    """Complete the options that depend on the bound ports. A port is 0 for a unix socket or without a listener."""
    options.broadcast_tcp_port = options.broadcast_tcp_port or tcp_port
    options.broadcast_http_port = options.broadcast_http_port or http_port
    options.statsd_prefix = expand_statsd_prefix(
        options.statsd_prefix, options.broadcast_address, options.broadcast_http_port
    )


def expand_statsd_prefix(prefix: str, broadcast_address: str, broadcast_http_port: int) -> str:
    """Insert host and port, and append a dot: `nsq.%s` becomes `nsq.10_0_0_1_4151.`. Empty remains empty."""
    if not prefix:
        return ""
    host = f"[{broadcast_address}]" if ":" in broadcast_address or "%" in broadcast_address else broadcast_address
    expanded = prefix.replace("%s", f"{host}:{broadcast_http_port}".replace(".", "_").replace(":", "_"))
    return expanded if expanded.endswith(".") else expanded + "."
