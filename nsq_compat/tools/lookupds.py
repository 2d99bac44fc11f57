"""The cluster behind the nsqlookupds that a utility is told of."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions


@dataclass(frozen=True, slots=True)
class _Lookupds:
    nsqlookupd_http_addresses: Sequence[str]
    nsqd_http_addresses: Sequence[str] = ()


def cluster_of(addresses: Sequence[str], *, connect_timeout: float, request_timeout: float) -> Cluster:
    """`addresses` are ``host:port`` or URLs, as `--lookupd-http-address` takes them."""
    found = [urlsplit(each if "://" in each else f"//{each}").netloc for each in addresses]
    client = HttpClient(HttpClientOptions(connect_timeout=connect_timeout, request_timeout=request_timeout))
    return Cluster(client, _Lookupds(found))
