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

    @property
    def base_path(self) -> str: ...
    @property
    def dev_static_dir(self) -> str: ...
    @property
    def graphite_url(self) -> str: ...
    @property
    def proxy_graphite(self) -> bool: ...
    @property
    def statsd_prefix(self) -> str: ...
    @property
    def statsd_counter_format(self) -> str: ...
    @property
    def statsd_gauge_format(self) -> str: ...
    @property
    def statsd_interval(self) -> int: ...
    @property
    def nsqlookupd_http_addresses(self) -> Sequence[str]: ...
    @property
    def nsqd_http_addresses(self) -> Sequence[str]: ...
    @property
    def allow_config_from_cidr(self) -> str: ...
    @property
    def acl_http_header(self) -> str: ...
    @property
    def admin_users(self) -> Sequence[str]: ...


class AdminService(Protocol):
    @property
    def options(self) -> AdminOptions: ...
    @property
    def version(self) -> str: ...
    @property
    def hostname(self) -> str: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def actions(self) -> Actions: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def history(self) -> History: ...
    @property
    def users(self) -> Users | None:
        """None if no login is required."""

    @property
    def secret_key(self) -> bytes: ...

    def now(self) -> float:
        """Unix seconds."""

    def notify(self, action: Mapping[str, Any]) -> None:
        """Queue a notification for the endpoint, if one is configured."""

    def config_value(self, name: str) -> object:
        """Raises KeyError."""

    def set_log_level(self, text: str) -> None:
        """Raises ValueError."""

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None: ...
