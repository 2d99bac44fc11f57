"""The interface that the program nsqadmin provides to its pages."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nsq_compat.cluster.actions import Actions
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.web.admin.users import Users
from nsq_compat.web.metrics import Metrics


class AdminOptions(Protocol):
    """Options that the pages read, named like their config keys. Durations are integer nanoseconds."""

    base_path: str
    dev_static_dir: str
    graphite_url: str
    proxy_graphite: bool
    statsd_prefix: str
    statsd_counter_format: str
    statsd_gauge_format: str
    statsd_interval: int
    nsqlookupd_http_addresses: tuple[str, ...]
    nsqd_http_addresses: tuple[str, ...]
    allow_config_from_cidr: str
    acl_http_header: str
    admin_users: tuple[str, ...]


class AdminService(Protocol):
    version: str
    hostname: str
    cluster: Cluster
    actions: Actions
    metrics: Metrics
    history: History
    users: Users | None
    """None if no login is required."""
    secret_key: bytes

    @property
    def options(self) -> AdminOptions: ...

    def now(self) -> float:
        """Unix seconds."""

    def notify(self, action: Mapping[str, Any]) -> None:
        """Queue a notification for the endpoint, if one is configured."""

    def config_value(self, name: str) -> object:
        """Raises KeyError."""

    def set_log_level(self, text: str) -> None:
        """Raises ValueError."""

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None: ...
