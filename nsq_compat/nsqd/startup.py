"""Parts made of options, --check-config, and the restoring of a data path: used by `daemon` before it serves."""

import logging
import ssl
import time

from nsq_compat import NSQ_VERSION
from nsq_compat.cli.kinds import TLS_NOT_REQUIRED, OptionError
from nsq_compat.godata.takeover import take_over
from nsq_compat.log.data_path import check_folder, reason, resolved
from nsq_compat.log.metadata import TopicMetadata, recover_metadata
from nsq_compat.log.storage import Storage
from nsq_compat.net.certificates import CertificateError, Certificates, TlsFiles
from nsq_compat.net.sockets import check_address
from nsq_compat.nsqd.http_calls import HttpCalls, client_tls
from nsq_compat.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions, hostname
from nsq_compat.nsqd.policies import load_policies
from nsq_compat.protocol.compression import SNAPPY_INSTALLED
from nsq_compat.protocol.durations import MILLISECOND, SECOND
from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.latency import LatencyOptions
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.session.negotiation import NsqdLimits

log = logging.getLogger(__name__)


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
        topology_aware=options.has_experiment(TOPOLOGY_AWARE_CONSUMPTION),
    )


def session_limits(options: NsqdOptions) -> NsqdLimits:
    """The limits of what clients may ask for."""
    return NsqdLimits(
        max_rdy_count=options.max_rdy_count,
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        msg_timeout_ms=options.msg_timeout // MILLISECOND,
        max_msg_timeout_ms=options.max_msg_timeout // MILLISECOND,
        max_req_timeout_ms=options.max_req_timeout // MILLISECOND,
        max_defer_timeout_ms=options.max_defer_timeout // MILLISECOND,
        client_timeout_ms=options.client_timeout // MILLISECOND,
        max_heartbeat_interval_ms=options.max_heartbeat_interval // MILLISECOND,
        max_output_buffer_size=options.max_output_buffer_size,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout // MILLISECOND,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout // MILLISECOND,
        output_buffer_timeout_ms=options.output_buffer_timeout // MILLISECOND,
        tls=bool(options.tls_cert or options.tls_key),
        tls_required=options.tls_required != TLS_NOT_REQUIRED,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        auth_required=bool(options.auth_http_addresses),
        snappy=options.snappy and SNAPPY_INSTALLED,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


def peer_info(options: NsqdOptions) -> PeerInfo:
    """The registration at nsqlookupd; the listeners are bound."""
    return PeerInfo(
        broadcast_address=options.broadcast_address,
        hostname=hostname(),
        http_port=options.broadcast_http_port,
        tcp_port=options.broadcast_tcp_port,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        version=NSQ_VERSION,
    )


def make_http_calls(options: NsqdOptions) -> HttpCalls:
    """The client for nsqlookupd's HTTP and auth servers. Raises ``OptionError``."""
    try:
        tls = client_tls(options.tls_root_ca_file, options.tls_min_version)
    except OSError as error:
        raise OptionError(f"failed to build client TLS config - {reason(error)}") from error
    return HttpCalls(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        tls=tls,
    )


def load_certificates(options: NsqdOptions) -> Certificates | None:
    """The server's certificates, or None. Raises ``OptionError`` in NSQ's words."""
    if not (options.tls_cert or options.tls_key):
        return None
    files = TlsFiles(
        options.tls_cert,
        options.tls_key,
        options.tls_root_ca_file,
        options.tls_client_auth_policy,
        ssl.TLSVersion(options.tls_min_version),
    )
    try:
        return Certificates(files)
    except CertificateError as error:
        raise OptionError(f"failed to build TLS config - {error}") from None


def check(options: NsqdOptions) -> None:
    """--check-config: find what a start would refuse. Raises ``OptionError``, ``DataPathError``, ``ListenError``.

    Takes no lock and no port, so it may run beside a daemon whose next configuration it checks.
    """
    check_folder(resolved(options.data_path))
    load_policies(options.config)
    certificates = load_certificates(options)
    make_http_calls(options)
    check_address(options.tcp_address)
    if options.http_address:
        check_address(options.http_address)
    if options.https_address and certificates is not None:
        check_address(options.https_address)


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
