import os

import pytest

from nsq_compat.cli.flags import parse, usage
from nsq_compat.cli.kinds import FLOATS, STRINGS, OptionError
from nsq_compat.cli.options import node_id, option_value, table_of
from nsq_compat.nsqd.options import NsqdOptions, complete, expand_statsd_prefix, validate
from nsq_compat.protocol.durations import HOUR

HOST = os.uname().nodename

NSQ_FLAGS = {
    # flag: (type in the usage text, default there)
    "auth-http-address": ("value", ""),
    "auth-http-request-method": ("string", '"get"'),
    "broadcast-address": ("string", f'"{HOST}"'),
    "broadcast-http-port": ("int", ""),
    "broadcast-tcp-port": ("int", ""),
    "config": ("string", ""),
    "data-path": ("string", ""),
    "deflate": ("", "true"),
    "e2e-processing-latency-percentile": ("value", ""),
    "e2e-processing-latency-window-time": ("duration", "10m0s"),
    "enable-experiment": ("value", ""),
    "http-address": ("string", '"0.0.0.0:4151"'),
    "http-client-connect-timeout": ("duration", "2s"),
    "http-client-request-timeout": ("duration", "5s"),
    "https-address": ("string", '"0.0.0.0:4152"'),
    "log-level": ("value", "INFO"),
    "log-prefix": ("string", '"[nsqd] "'),
    "lookupd-tcp-address": ("value", ""),
    "max-body-size": ("int", "5242880"),
    "max-bytes-per-file": ("int", "104857600"),
    "max-channel-consumers": ("int", ""),
    "max-deflate-level": ("int", "6"),
    "max-heartbeat-interval": ("duration", "1m0s"),
    "max-msg-size": ("int", "1048576"),
    "max-msg-timeout": ("duration", "15m0s"),
    "max-output-buffer-size": ("int", "65536"),
    "max-output-buffer-timeout": ("duration", "30s"),
    "max-rdy-count": ("int", "2500"),
    "max-req-timeout": ("duration", "1h0m0s"),
    "mem-queue-size": ("int", "10000"),
    "min-output-buffer-timeout": ("duration", "25ms"),
    "msg-timeout": ("duration", "1m0s"),
    "node-id": ("int", str(node_id(HOST))),
    "output-buffer-timeout": ("duration", "250ms"),
    "queue-scan-selection-count": ("int", "20"),
    "queue-scan-worker-pool-max": ("int", "4"),
    "snappy": ("", "true"),
    "statsd-address": ("string", ""),
    "statsd-exclude-ephemeral": ("", ""),
    "statsd-interval": ("duration", "1m0s"),
    "statsd-mem-stats": ("", "true"),
    "statsd-prefix": ("string", '"nsq.%s"'),
    "statsd-udp-packet-size": ("int", "508"),
    "sync-every": ("int", "2500"),
    "sync-timeout": ("duration", "2s"),
    "tcp-address": ("string", '"0.0.0.0:4150"'),
    "tls-cert": ("string", ""),
    "tls-client-auth-policy": ("string", ""),
    "tls-key": ("string", ""),
    "tls-min-version": ("value", "tls1.0"),
    "tls-required": ("", ""),
    "tls-root-ca-file": ("string", ""),
    "topology-region": ("string", ""),
    "topology-zone": ("string", ""),
    "verbose": ("", ""),
    "version": ("", ""),
    "worker-id": ("", ""),
}
"""Every flag of NSQ 1.3.0's nsqd."""

OUR_OWN_FLAGS = {
    "access-file": ("string", ""),
    "busy-poll-time": ("duration", ""),
    "cluster-token": ("string", ""),
    "check-config": ("", ""),
    "drain-timeout": ("duration", "5m0s"),
    "durability": ("string", '"os"'),
    "http-publish-without-auth": ("", ""),
    "log-format": ("string", '"text"'),
    "lookupd-tls-cert": ("string", ""),
    "lookupd-tls-key": ("string", ""),
    "lookupd-tls-root-ca-file": ("string", ""),
    "max-connections-per-address": ("int", ""),
    "max-defer-timeout": ("duration", ""),
    "max-new-connections-per-second": ("int", ""),
    "metrics-max-names": ("int", "1000"),
    "mirror-accept": ("", ""),
    "mirror-auth-secret": ("string", ""),
    "mirror-compression": ("string", '"none"'),
    "mirror-lost": ("string", '"continue"'),
    "mirror-mode": ("string", '"sync"'),
    "mirror-takeover-after": ("string", '"30s"'),
    "mirror-timeout": ("duration", "1s"),
    "mirror-tls": ("", ""),
    "mirror-to": ("string", ""),
    "sigterm": ("string", '"stop"'),
}
OUR_OWN_FLAGS |= {row.flag: ("string", "") for row in table_of(NsqdOptions) if row.file_of}
"""Flags NSQ does not have."""

CONFIG_KEYS = {
    "node-id": "id",
    "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
    "auth-http-address": "auth_http_addresses",
    "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
}
"""Where the key in NSQ's config file is not the flag with underscores."""

TABLE = table_of(NsqdOptions)


def options_from(*words):
    return NsqdOptions(**parse(TABLE, words).given)


def test_nsqd_has_every_flag_of_nsq_with_its_type_and_default():
    shown = {
        row.flag: (
            row.kind.type_name,
            "" if row.kind.show(row.default) == row.kind.unset else row.kind.show(row.default),
        )
        for row in TABLE
    }
    assert shown == NSQ_FLAGS | OUR_OWN_FLAGS


def test_config_keys_are_the_flags_with_underscores_but_for_four():
    for row in TABLE:
        assert row.key == CONFIG_KEYS.get(row.flag, row.flag.replace("-", "_"))


def test_five_flags_mean_nothing_in_the_config_file():
    flags_only = {"check-config", "config", "verbose", "version", "worker-id"}
    assert {row.flag for row in TABLE if not row.in_file} == flags_only


def test_every_option_has_its_default_and_can_be_read_at_run_time():
    options = NsqdOptions()
    shown = {row.key: option_value(options, row.key) for row in TABLE if row.in_file and not row.file_of}
    defaults = {
        row.key: list(row.default) if row.kind is STRINGS or row.kind is FLOATS else row.default for row in TABLE
    }
    assert shown["max_defer_timeout"] == HOUR  # that of --max-req-timeout
    assert {key: defaults[key] for key in shown} == shown | {"max_defer_timeout": 0}


@pytest.mark.parametrize("key", ["version", "config", "verbose", "worker_id", "client_timeout", "node_id", "bogus"])
def test_other_names_cannot_be_read(key):
    with pytest.raises(KeyError):
        option_value(NsqdOptions(), key)


def test_every_default_is_a_value_of_its_flag():
    for row in TABLE:
        if row.kind.type_name not in ("value", ""):
            text = row.kind.show(row.default).strip('"')
            assert row.kind.parse(text, None) == row.default


def test_every_flag_is_explained_in_one_line():
    for row in TABLE:
        assert row.help
        assert "\n" not in row.help
    assert len(usage("nsqd", TABLE).splitlines()) == 1 + 2 * len(TABLE)


def test_the_node_id_follows_from_the_host_name():
    assert node_id("vm") == 617
    assert all(0 <= node_id(f"host{number}") < 1024 for number in range(100))


def test_the_host_name_is_the_machine_s():
    assert NsqdOptions().broadcast_address == HOST
    assert NsqdOptions().id == node_id(HOST)


@pytest.mark.parametrize("words", [["-verbose"], ["-worker-id"], ["-worker-id=false"]])
def test_deprecated_flags_are_accepted_and_ignored(words):
    validate(options_from(*words))


def test_a_client_policy_makes_tls_mandatory():
    assert options_from("-tls-client-auth-policy=anything").tls_required == 1
    assert options_from("-tls-client-auth-policy=require", "-tls-required=tcp-https").tls_required == 2
    assert options_from("-tls-client-auth-policy=").tls_required == 0


def test_publishing_over_http_is_refused_only_with_auth_servers():
    assert options_from().publishing_over_http
    assert not options_from("-auth-http-address=a:1").publishing_over_http
    assert options_from("-auth-http-address=a:1", "-http-publish-without-auth").publishing_over_http


def test_experiments_are_not_checked():
    options = options_from("-enable-experiment=topology-aware-consumption", "-enable-experiment=time-travel")
    validate(options)
    assert options.enable_experiment == ("topology-aware-consumption", "time-travel")


def test_the_defaults_are_valid():
    validate(NsqdOptions())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-max-deflate-level=0"], "--max-deflate-level must be [1,9]"),
        (["-max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
        (["-node-id=-1"], "--node-id must be [0,1024)"),
        (["-node-id=1024"], "--node-id must be [0,1024)"),
        (["-tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["-tls-required=tcp-https"], "cannot require TLS client connections without TLS key and cert"),
        (["-tls-client-auth-policy=x"], "cannot require TLS client connections without TLS key and cert"),
        (["-auth-http-request-method=GET"], "--auth-http-request-method must be post or get"),
        (["-e2e-processing-latency-percentile=1.5"], "invalid E2E processing latency percentile: 1.5"),
        (["-e2e-processing-latency-percentile=0.5,150,0"], "invalid E2E processing latency percentile: 150"),
        (["-e2e-processing-latency-percentile=0"], "invalid E2E processing latency percentile: 0"),
        (["-e2e-processing-latency-percentile=-0.25"], "invalid E2E processing latency percentile: -0.25"),
        (["-e2e-processing-latency-percentile=nan"], "invalid E2E processing latency percentile: nan"),
        (["-mem-queue-size=-1"], "--mem-queue-size must not be negative"),
        (["-statsd-address=h:1", "-statsd-interval=0s"], "--statsd-interval must be positive"),
        (["-busy-poll-time=-1ms"], "--busy-poll-time must not be negative"),
        (["-output-buffer-timeout=-1ms"], "--output-buffer-timeout must not be negative"),
        (["-msg-timeout=999us"], "--msg-timeout must be at least 1ms"),
        (["-mirror-timeout=0s"], "--mirror-timeout must be positive"),
        (["-mirror-to=h:1", "-durability=memory"], "--mirror-to needs --durability=os or fsync"),
        (["-mirror-lost=refuse"], "--mirror-lost=refuse needs --mirror-to"),
        (["-http-client-connect-timeout=0"], "--http-client-connect-timeout must be positive"),
        (["-http-client-request-timeout=-1s"], "--http-client-request-timeout must be positive"),
        (
            ["-e2e-processing-latency-percentile=1", "-e2e-processing-latency-window-time=0s"],
            "--e2e-processing-latency-window-time must be positive",
        ),
        # The first mistake in NSQ's order is the one reported.
        (["-node-id=-1", "-max-deflate-level=0"], "--max-deflate-level must be [1,9]"),
        (["-tls-required", "-node-id=-1"], "--node-id must be [0,1024)"),
        (
            ["-auth-http-request-method=x", "-tls-required"],
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            ["-e2e-processing-latency-percentile=2", "-auth-http-request-method=x"],
            "--auth-http-request-method must be post or get",
        ),
    ],
)
def test_impossible_options_are_refused_in_nsq_s_words(words, text):
    with pytest.raises(OptionError) as caught:
        validate(options_from(*words))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "words",
    [
        ["-max-deflate-level=1", "-node-id=0", "-mem-queue-size=0"],
        ["-max-deflate-level=9", "-node-id=1023", "-auth-http-request-method=post"],
        ["-tls-required", "-tls-cert=c", "-tls-key=k"],
        ["-e2e-processing-latency-percentile=1,0.0001"],
        ["-e2e-processing-latency-window-time=0s"],
        ["-sync-timeout=-5s", "-statsd-interval=0"],
        ["-msg-timeout=1ms", "-output-buffer-timeout=0", "-http-client-request-timeout=1ns"],
    ],
)
def test_the_limits_themselves_are_valid(words):
    validate(options_from(*words))


@pytest.mark.parametrize(
    ("prefix", "host", "port", "expanded"),
    [
        ("nsq.%s", "127.0.0.1", 4151, "nsq.127_0_0_1_4151."),
        ("nsq.%s.", "host.example.com", 80, "nsq.host_example_com_80."),
        ("%s.%s", "h", 1, "h_1.h_1."),
        ("plain", "h", 1, "plain."),
        ("100%", "h", 1, "100%."),
        ("nsq.%s", "::1", 0, "nsq.[__1]_0."),
        ("nsq.%s", "fe80::1%eth0", 5, "nsq.[fe80__1%eth0]_5."),
        ("", "h", 1, ""),
    ],
)
def test_the_statsd_prefix_names_host_and_port_and_ends_in_a_dot(prefix, host, port, expanded):
    assert expand_statsd_prefix(prefix, host, port) == expanded


def test_bound_ports_complete_the_options():
    options = NsqdOptions(broadcast_address="h.x")
    complete(options, 4150, 4151)
    assert (options.broadcast_tcp_port, options.broadcast_http_port) == (4150, 4151)
    assert options.statsd_prefix == "nsq.h_x_4151."


def test_given_ports_take_precedence_over_bound_ones():
    options = NsqdOptions(broadcast_address="h.x", broadcast_tcp_port=1, broadcast_http_port=2)
    complete(options, 4150, 4151)
    assert (options.broadcast_tcp_port, options.broadcast_http_port) == (1, 2)
    assert options.statsd_prefix == "nsq.h_x_2."
