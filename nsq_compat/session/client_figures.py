"""What /stats shows of a client of nsqd, put together from what its session knows."""

from collections.abc import Mapping

from nsq_compat.queue.stats import ClientStats
from nsq_compat.session.authorization import Access
from nsq_compat.session.nsqd_limits import ClientSettings
from nsq_compat.session.subscription import Counts
from nsq_compat.session.upgrade import Layers


def figures(
    *,
    peer: str,
    state: int,
    connect_ts: int,
    settings: ClientSettings,
    layers: Layers,
    access: Access | None,
    counts: Counts,
    pub_counts: Mapping[bytes, int],
) -> ClientStats:
    """`connect_ts` is Unix seconds; `access` is None where nobody has to say who he is."""
    tls = layers.tls
    grants = access.grants if access is not None else None
    return ClientStats(
        client_id=settings.client_id,
        hostname=settings.hostname,
        version="V2",
        remote_address=peer,
        state=state,
        **counts._asdict(),
        connect_ts=connect_ts,
        sample_rate=settings.sample_rate,
        deflate=layers.deflate,
        snappy=layers.snappy,
        user_agent=settings.user_agent,
        authed=access is not None and access.authed,
        auth_identity=grants.identity if grants is not None else "",
        auth_identity_url=grants.identity_url if grants is not None else "",
        topology_zone=settings.topology_zone,
        topology_region=settings.topology_region,
        pub_counts=tuple(sorted((topic.decode("ascii"), count) for topic, count in pub_counts.items())),
        tls=tls is not None,
        tls_cipher_suite=tls.cipher_suite if tls else "",
        tls_version=tls.version if tls else "",
        tls_negotiated_protocol_is_mutual=tls is not None,  # nsqd: whatever was negotiated
    )
