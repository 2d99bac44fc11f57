"""Creates the daemon's parts from options, reads policies, checks a configuration, and restores a data path.

`daemon` uses it before it serves. Policies are the tables `[[policies]]`, which Go's nsqd ignores.
"""

import logging
import re
import time
from functools import partial
from typing import Final

from nsq_compat.cli.flags import load_access, load_config
from nsq_compat.cli.kinds import TLS_NOT_REQUIRED, OptionError
from nsq_compat.godata import export as go_export
from nsq_compat.godata.takeover import take_over
from nsq_compat.log import identity
from nsq_compat.log.data_path import DataPathError, DataPathLock, check_folder, make_our_folder, reason, resolved
from nsq_compat.log.files import Files
from nsq_compat.log.identity import Identity
from nsq_compat.log.metadata import TopicMetadata, recover_metadata
from nsq_compat.log.storage import Storage
from nsq_compat.net.certificates import load_certificates
from nsq_compat.net.sockets import check_address
from nsq_compat.nsqd.http_calls import HttpCalls, client_tls, tls_reason
from nsq_compat.nsqd.lookup_peers import TLS_SCHEME, LookupdTls
from nsq_compat.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions
from nsq_compat.policy.policies import Policies, PolicyError
from nsq_compat.protocol.compression import SNAPPY_INSTALLED
from nsq_compat.protocol.durations import MILLISECOND, SECOND
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import LatencyOptions, QueueLimits
from nsq_compat.session.negotiation import NsqdLimits

log = logging.getLogger(__name__)

POLICIES: Final = "policies"
_POLICIES_TABLE: Final = re.compile(rf"""\s*\[\[\s*["']?{POLICIES}["']?\s*\]\]""")
_ANY_TABLE: Final = re.compile(r"\s*\[")


def queue_limits(options: NsqdOptions) -> QueueLimits:
    """The bounds of the queue."""
    return QueueLimits(
        mem_queue_size=options.mem_queue_size,
        max_msg_timeout=options.max_msg_timeout / SECOND,
        max_channel_consumers=options.max_channel_consumers,
        node_id=options.id,
        latency=LatencyOptions(
            options.e2e_processing_latency_percentiles, options.e2e_processing_latency_window_time / SECOND
        )
        if options.e2e_processing_latency_percentiles
        else None,
        topology_aware=TOPOLOGY_AWARE_CONSUMPTION in options.enable_experiment,
    )


def session_limits(options: NsqdOptions) -> NsqdLimits:
    """The limits of the settings that clients may request."""
    milliseconds = (
        *("msg_timeout", "max_msg_timeout", "max_req_timeout", "max_defer_timeout", "client_timeout"),
        *("max_heartbeat_interval", "min_output_buffer_timeout", "max_output_buffer_timeout", "output_buffer_timeout"),
    )
    same = (
        *("max_rdy_count", "max_msg_size", "max_body_size", "max_output_buffer_size"),
        *("deflate", "max_deflate_level", "topology_region", "topology_zone"),
    )
    return NsqdLimits(
        **{f"{key}_ms": getattr(options, key) // MILLISECOND for key in milliseconds},
        **{key: getattr(options, key) for key in same},
        tls=bool(options.tls_cert or options.tls_key),
        tls_required=options.tls_required != TLS_NOT_REQUIRED,
        auth_required=bool(options.auth_http_addresses or options.access_file),
        snappy=options.snappy and SNAPPY_INSTALLED,
    )


def make_http_calls(options: NsqdOptions) -> HttpCalls:
    """The client for nsqlookupd's HTTP and auth servers. Raises ``OptionError``."""
    calls = HttpCalls(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        make_tls=partial(client_tls, options.tls_root_ca_file, options.tls_min_version),
    )
    # Reading the system's authorities takes a tenth of the time of a start, and many nsqd never need them.
    calls_are_likely = bool(options.auth_http_addresses or options.nsqlookupd_tcp_addresses)
    if options.tls_root_ca_file or calls_are_likely:
        try:
            calls.make_tls()
        except OSError as error:
            raise OptionError(f"failed to build client TLS config - {reason(error)}") from error
    if calls_are_likely:
        calls.prepare()
    return calls


def make_lookupd_tls(options: NsqdOptions) -> LookupdTls:
    """The TLS of connections and calls to nsqlookupds. Raises ``OptionError``."""
    certificate, key = options.lookupd_tls_cert, options.lookupd_tls_key
    if key and not certificate:
        raise OptionError("--lookupd-tls-key needs --lookupd-tls-cert")
    if not certificate:
        certificate, key = options.tls_cert, options.tls_key
    root_ca_file = options.lookupd_tls_root_ca_file or options.tls_root_ca_file
    tls = LookupdTls(partial(client_tls, root_ca_file, options.tls_min_version, certificate, key))
    # At run time, addresses with TLS may be added.
    explicit = options.lookupd_tls_cert or options.lookupd_tls_root_ca_file
    if explicit or any(each.startswith(TLS_SCHEME) for each in options.nsqlookupd_tcp_addresses):
        try:
            _ = tls.context
        except OSError as error:
            files = ", ".join(filter(None, (root_ca_file, certificate, key)))
            raise OptionError(f"failed to build TLS config for nsqlookupd from {files} - {tls_reason(error)}") from None
    return tls


def lock_data_path(files: Files, data_path: str) -> DataPathLock:
    """Lock the data path, and finish an interrupted export. Raises ``DataPathError``."""
    lock = DataPathLock(data_path)
    try:
        go_export.recover(files, data_path)
    except OSError as error:
        raise DataPathError(
            f"failed to look for an interrupted export - {error}; see Read errors in docs/runbook.md"
        ) from error
    make_our_folder(files, data_path)
    return lock


def begin_epoch(files: Files, data_path: str) -> Identity:
    """The identity of the data path in mirroring. Raises ``DataPathError``."""
    try:
        return identity.begin_epoch(files, data_path)
    except (OSError, ValueError) as error:
        raise DataPathError(f"cannot read or write the identity of the data path - {error}") from error


def load_policies(path: str) -> Policies:
    """The policies in a config file; none if `path` is empty. Raises ``OptionError``, which names the line."""
    if not path:
        return Policies()
    try:
        return Policies(load_config(path).get(POLICIES, ()))
    except PolicyError as error:
        line = _line_of(path, error)
        where = f"line {line}: " if line else ""
        raise OptionError(f"failed to load config file {path} - {where}{error}") from None


def _line_of(path: str, error: PolicyError) -> int:
    """The line of the setting, or else of the policy; 0 if neither is found."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        lines = file.read().splitlines()
    begins = [number for number, line in enumerate(lines, 1) if _POLICIES_TABLE.match(line)]
    if not 0 < error.number <= len(begins):
        return 0
    begin = begins[error.number - 1]
    setting = re.compile(rf"""\s*["']?{re.escape(error.key)}["']?\s*=""")
    for number, line in enumerate(lines[begin:], begin + 1):
        if _ANY_TABLE.match(line):
            break
        if error.key and setting.match(line):
            return number
    return begin


def check(options: NsqdOptions) -> None:
    """--check-config: find what a start would refuse, and raise what `Daemon` would.

    Takes no lock and no port, so it can check the next configuration of a running daemon.
    """
    check_folder(resolved(options.data_path))
    load_policies(options.config)
    load_access(options.access_file)
    certificates = load_certificates(options)
    make_http_calls(options)
    make_lookupd_tls(options)
    check_address(options.tcp_address)
    if options.http_address:
        check_address(options.http_address)
    if options.https_address and certificates is not None:
        check_address(options.https_address)


def recall_ids(broker: Broker) -> None:
    """Read the publish ids of the topics whose policies have a window for them. Raises ``OSError``."""
    for topic in broker.topics.values():
        began = time.monotonic()
        if count := topic.recall_ids(time.time_ns()):
            took = time.monotonic() - began
            log.info("TOPIC(%s): %d publish ids read from the log in %.1f s", topic.name, count, took)


def restore(broker: Broker, storage: Storage) -> None:
    """Restore every topic that has a log or is named in nsqd.dat. Raises ``MetadataError``, ``OSError``.

    A topic's own log is the authority on its channels and on whether it is paused; nsqd.dat on which channels are
    paused, and on topics without a log. The readable part of a damaged nsqd.dat is used, and a copy of it is kept.
    """
    take_over(storage.files, storage.data_path, storage.segment_size)
    named = {topic.name: topic for topic in recover_metadata(storage.files, storage.data_path)}
    stored = set(storage.names())
    for name in sorted(stored | named.keys()):
        if not is_valid_name(name):
            log.warning("skipping creation of invalid topic %s", name)
            continue
        known = named.get(name, TopicMetadata(name))
        topic = broker.restore(name, [channel.name for channel in known.channels], time.monotonic(), time.time_ns())
        if known.paused and (name not in stored or not topic.channels):
            topic.pause()
        for channel in known.channels:
            if channel.paused and channel.name in topic.channels:
                topic.channels[channel.name].pause()
