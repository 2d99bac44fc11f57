"""Pages of the whole cluster: the overview, the counter, what nsqlookupd knows, and the nsqds with their tombstones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.alerts import alerts_on_node, find_alerts
from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.history import CLUSTER, History, node_key
from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.cluster.mirroring import Primary
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.sightings import GONE, OK, Sighting
from nsq_compat.cluster.stats import ChannelStats, ClientStats, NodeStats, TopicStats
from nsq_compat.protocol.names import canonical_host
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import perform
from nsq_compat.web.admin.formatting import UNKNOWN, nanoseconds
from nsq_compat.web.admin.queries import STATS_SHARE, Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of, page_of, rows_page, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

cluster = Blueprint("cluster", __name__)

_MAX_ALERTS: Final = 25
_MAX_BUSIEST: Final = 20
_MAX_INACTIVE: Final = 100
"""Channels of an inactive topic."""
_MAX_APPLICATIONS: Final = 200
_MAX_CHANNELS: Final = 1000
_MAX_CLIENTS: Final = 500
"""Of all topics on a page of a node. Other visitors wait while a page is made."""
_MAX_OF_ONE: Final = 100
"""Channels of a topic, and clients of a channel."""
_SETTINGS: Final = (
    *("durability", "data_path", "mem_queue_size", "max_msg_size", "msg_timeout", "max_rdy_count", "max_req_timeout"),
    *("nsqlookupd_tcp_addresses", "tls_required", "auth_http_addresses", "log_level"),
)
"""Options that the page of a node shows, by their names in nsqd's /config."""
_FLAGS: Final = {
    "nsqlookupd_tcp_addresses": "lookupd-tcp-address",
    "auth_http_addresses": "auth-http-address",
}
"""Flags that are not named as the option."""
_VALUES: Final = {
    "tls_required": {"0": "false", "1": "true", "2": "tcp-https"},
    "log_level": {"1": "debug", "2": "info", "3": "warn", "4": "error", "5": "fatal"},
}
"""What a flag accepts for the numbers in /config."""


@cluster.get("/")
def overview() -> str:
    snapshot = current_snapshot()
    history = service().history
    alerts, rate = find_alerts(snapshot, history), history.rate(CLUSTER)
    waiting = sum(topic.waiting for topic in snapshot.topics) if snapshot.is_known else None
    totals = {
        "Topics": len(snapshot.topics),
        "Channels": sum(len(topic.channels) for topic in snapshot.topics),
        "Consumers": sum(topic.total("client_count") for topic in snapshot.topics),
        "Waiting": waiting,
        "In flight": sum(topic.total("in_flight_count") for topic in snapshot.topics),
    }
    return render_template(
        "cluster/overview.html",
        warnings=snapshot.errors,
        alerts=alerts[:_MAX_ALERTS],
        more_alerts=max(0, len(alerts) - _MAX_ALERTS),
        page=rows_page(snapshot.topics),
        rate=rate,
        charts=charts_of(CLUSTER, waiting, rate, snapshot.taken_at),
        totals=totals if snapshot.is_known else dict.fromkeys(totals),
        node_count=_node_count(snapshot),
        silent=snapshot.unreachable,
        timeframe=timeframe(),
    )


def _node_count(snapshot: Snapshot) -> int | None:
    """The number of nodes that the cluster has; None if that is not known."""
    found = {*(node.http_address for node in snapshot.nodes), *snapshot.unreachable}
    return len(found) if found or snapshot.is_known else None


@cluster.get("/counter")
def counter() -> str:
    snapshot = current_snapshot()
    rate = service().history.rate
    rows = [
        (*channel.key, channel.message_count, rate(channel.key) or 0.0)
        for topic in snapshot.topics
        for channel in topic.channels
    ]
    return render_template(
        "cluster/counter.html",
        total=sum(count for _, _, count, _ in rows) if snapshot.is_known else None,
        rate=sum(rate for *_, rate in rows),
        busiest=sorted((row for row in rows if row[3]), key=lambda row: -row[3])[:_MAX_BUSIEST],
        warnings=snapshot.errors,
        timeframe=timeframe(),
    )


@cluster.get("/lookup")
def lookup() -> str:
    if request.args.get("confirm") == "delete":
        require(Role.ADMIN)
        names = {name: request.args.get(name, "") for name in ("topic", "channel")}
        return render_template("cluster/confirm.html", **names)
    queries = Queries()
    lookupds = service().cluster.lookupds
    inactive: list[str] | None = []
    channels: dict[str, list[str]] = {}
    try:
        inactive = queries.inactive_topics() if lookupds else []
    except AllFailed as failure:
        queries.add_warning(failure.errors)
        inactive = None
    page = page_of(inactive or [], request.args, {"name": str}, str)
    if page.rows:
        channels = queries.channels_of(page.rows)
    return render_template(
        "cluster/lookup.html",
        lookupds=lookupds,
        health=queries.health_of(lookupds),
        is_known=inactive is not None,
        page=page,
        channels={topic: names[:_MAX_INACTIVE] for topic, names in channels.items()},
        more={topic: max(0, len(names) - _MAX_INACTIVE) for topic, names in channels.items()},
        warnings=queries.warnings,
    )


# --- Nodes ------------------------------------------------------------------------------------------------------------

nodes = Blueprint("nodes", __name__)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the newest snapshot, or one that is gone."""

    node: Node
    stats: NodeStats | None
    """None if it did not answer then."""
    sighting: Sighting | None
    rate: float | None

    @property
    def address(self) -> str:
        return self.node.http_address

    @property
    def is_gone(self) -> bool:
        return self.sighting is not None and self.sighting.state == GONE

    @property
    def is_mirroring(self) -> bool:
        return self.stats is not None and self.stats.mirroring.is_used

    @property
    def host(self) -> str:
        """Equal for all nodes of a machine, however they spell its broadcast address."""
        return canonical_host(self.node.broadcast_address)

    def figure(self, name: str) -> float:
        """For sorting; nodes without the figure come last."""
        return float(getattr(self.stats, name)) if self.stats else -1.0


@dataclass(frozen=True, slots=True)
class Host:
    """The nodes of one machine, with sums over those that answered."""

    nodes: Sequence[NodeRow]

    @property
    def address(self) -> str:
        return self.nodes[0].node.broadcast_address

    @property
    def answered(self) -> list[NodeStats]:
        return [row.stats for row in self.nodes if row.stats]

    @property
    def waiting(self) -> int:
        return sum(stats.waiting for stats in self.answered)

    @property
    def rate(self) -> float | None:
        known = [row.rate for row in self.nodes if row.rate is not None]
        return sum(known) if known else None

    @property
    def consumers(self) -> int:
        return sum(stats.total("client_count") for stats in self.answered)

    @property
    def topics(self) -> int:
        """A topic that several nodes have is one."""
        return len({topic.topic_name for stats in self.answered for topic in stats.topics})

    def sort_key(self, column: str) -> Any:
        """Orders machines as a row of the sums would, where there are sums, else by the highest of its nodes."""
        if column in _SUMS and self.answered:
            return getattr(self, column) or 0
        values = [_NODE_COLUMNS[column](row) for row in self.nodes]
        return min(values) if column == "name" else max(values)


_SUMS: Final = ("waiting", "rate", "consumers", "topics")
_NODE_COLUMNS: Final[Mapping[str, Callable[[NodeRow], Any]]] = {
    "name": lambda row: row.node.hostname,
    "version": lambda row: row.node.version,
    "waiting": lambda row: row.figure("waiting"),
    "rate": lambda row: -1.0 if row.rate is None else row.rate,
    "consumers": lambda row: row.stats.total("client_count") if row.stats else -1,
    "topics": lambda row: len(row.stats.topics) if row.stats else -1,
    "disk": lambda row: row.stats.build.disk_free_bytes if row.stats and row.stats.build else -1,
    "uptime": lambda row: -row.figure("start_time"),
}


def _node_rows(snapshot: Snapshot, history: History) -> list[NodeRow]:
    sightings = history.sightings
    found = {node.http_address: node for node in snapshot.nodes}
    others = [sighting for address in snapshot.unreachable if (sighting := sightings.of(address))] + sightings.gone()
    found |= {each.node.http_address: each.node for each in others if each.node.http_address not in found}
    stats, rate = snapshot.node_stats, history.rate
    return [NodeRow(node, stats.get(at), sightings.of(at), rate(node_key(at))) for at, node in found.items()]


def _hosts(rows: Iterable[NodeRow]) -> dict[str, Host]:
    found: dict[str, list[NodeRow]] = {}
    for row in rows:
        found.setdefault(row.host, []).append(row)
    return {host: Host(nodes) for host, nodes in found.items()}


def _grouped(hosts: Mapping[str, Host], column: str) -> Callable[[NodeRow], Any]:
    """A sort key by which the nodes of a machine stay together."""
    keys = {host: each.sort_key(column) for host, each in hosts.items()}
    return lambda row: (keys[row.host], row.host, _NODE_COLUMNS[column](row))


@nodes.get("/nodes")
def list_() -> str:
    queries, lookupds, history = Queries(), service().cluster.lookupds, service().history
    snapshot = queries.snapshot()
    rows = _node_rows(snapshot, history)
    hosts = _hosts(rows)
    columns = {column: _grouped(hosts, column) for column in _NODE_COLUMNS}
    page = page_of(rows, request.args, columns, lambda row: f"{row.node.hostname} {row.address}")
    if snapshot is history.latest:
        # The figures are those of the sample. Whether a daemon answers is asked now.
        health = queries.health_of([*lookupds, *(row.address for row in page.rows)])
    else:
        health = {address: stats.health for address, stats in snapshot.node_stats.items()}
        health |= dict.fromkeys(set(lookupds) - set(snapshot.silent_lookupds), OK)
    return render_template(
        "nodes/list.html",
        page=page,
        groups=[(hosts[host], list(rows)) for host, rows in groupby(page.rows, attrgetter("host"))],
        health=health,
        lookupds=lookupds,
        taken_at=snapshot.taken_at,
        pages=_pages_by_address(snapshot, history),
        node_count=page.found if page.search or rows else _node_count(snapshot),
        warnings=snapshot.errors,
    )


@nodes.get("/nodes/<node>")
def node(node: str) -> str:
    queries, history, now = Queries(STATS_SHARE), service().history, service().now()
    described, stats = queries.node_or_silent(node)
    if request.args.get("confirm") == "tombstone":
        require(Role.ADMIN)
        name = request.args.get("topic", "")
        topic = next((topic for topic in stats.topics if topic.topic_name == name), None) if stats else None
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return render_template("nodes/confirm.html", node=node, topic=topic)
    if request.args.get("confirm") == "adopt":
        require(Role.OPERATOR)
        return render_template("nodes/adopt.html", node=node, primary=_adoptable(stats, request.args.get("identity")))
    if stats is None:
        sighting = history.sightings.recall(node)
        copies = _copies_of(node, history.latest)
        return render_template(
            "nodes/silent.html", node=described, sighting=sighting, copies=copies, warnings=queries.warnings
        )
    alerts, rate = alerts_on_node(stats, history, now), history.rate(node_key(node))
    page = page_of(stats.topics, request.args, {"name": attrgetter("name")}, attrgetter("name"))
    return render_template(
        "nodes/node.html",
        node=described,
        stats=stats,
        sighting=history.sightings.of(node),
        rate=rate,
        growth=history.growth(node_key(node)),
        pages=_pages_by_address(history.latest, history),
        charts=charts_of(node_key(node), stats.waiting, rate, now),
        alerts=alerts[:_MAX_ALERTS],
        more_alerts=max(0, len(alerts) - _MAX_ALERTS),
        settings=[_as_flag(name, value) for name, value in queries.settings_of(node, _SETTINGS).items()],
        page=page,
        blocks=list(_blocks(page.rows)),
        consumers=_by_application(stats),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@dataclass(frozen=True, slots=True)
class TopicBlock:
    """A topic of a node, with those of its channels, and of their clients, that the page has room for."""

    topic: TopicStats
    channels: Sequence[ChannelStats]
    clients: Sequence[tuple[ChannelStats, Sequence[ClientStats]]]


def _blocks(topics: Iterable[TopicStats]) -> Iterator[TopicBlock]:
    room, room_for_clients = _MAX_CHANNELS, _MAX_CLIENTS
    for topic in topics:
        channels = topic.channels[: min(room, _MAX_OF_ONE)]
        room -= len(channels)
        clients = []
        for channel in filter(attrgetter("clients"), channels):
            shown = (channel.clients or [])[: min(room_for_clients, _MAX_OF_ONE)]
            room_for_clients -= len(shown)
            clients.append((channel, shown))
        yield TopicBlock(topic, channels, clients)


def _adoptable(stats: NodeStats | None, identity: str | None) -> Primary:
    for primary in stats.mirroring.primaries if stats else ():
        if primary.identity == identity and primary.can_be_adopted:
            return primary
    raise ApiError(404, "MIRROR_NOT_FOUND")


def _copies_of(address: str, snapshot: Snapshot | None) -> list[tuple[str, Primary]]:
    """The copies of a node, each with the address of the standby that has it."""
    return [
        (standby, primary)
        for standby, stats in (snapshot.node_stats if snapshot else {}).items()
        for primary in stats.mirroring.primaries
        if primary.http_address == address
    ]


def _pages_by_address(snapshot: Snapshot | None, history: History) -> dict[str, str]:
    """The nodes that have a page, by HTTP and by TCP address."""
    known = [*(snapshot.nodes if snapshot else ()), *(sighting.node for sighting in history.sightings.gone())]
    return {at: node.http_address for node in known for at in (node.tcp_address, node.http_address)}


def _as_flag(name: str, value: str) -> tuple[str, str]:
    """An option of nsqd and its value as they are written on a command line; several values are separated by commas."""
    if name.endswith("_timeout") and value.isdigit():
        value = nanoseconds(int(value))
    elif value.startswith("["):
        value = ", ".join(value.strip("[]").replace('"', "").split(",")) or UNKNOWN
    return f"--{_FLAGS.get(name, name.replace('_', '-'))}", _VALUES.get(name, {}).get(value, value)


def _by_application(stats: NodeStats) -> list[tuple[str, str, str, int, int]]:
    """Consumers of a node: channel, host and user agent, with the numbers of connections and of messages in flight."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for topic in stats.topics:
        for channel in topic.channels:
            for client in channel.clients or ():
                key = (topic.topic_name, channel.channel_name, f"{client.hostname} {client.user_agent}")
                counts = found.setdefault(key, [0, 0])
                counts[0] += 1
                counts[1] += client.in_flight_count
    return [(*key, connections, held) for key, (connections, held) in sorted(found.items())][:_MAX_APPLICATIONS]


@nodes.post("/nodes/<node>")
def act(node: str) -> Response:
    topic = request.form.get("topic", "")
    if request.form.get("action") == "dismiss":
        back = url_for("cluster.overview" if request.form.get("next") == "overview" else "nodes.list_")
        return perform(lambda: actions.dismiss(node), f"Dismissed {node}.", back)
    if request.form.get("action") == "adopt":
        here, identity = url_for("nodes.node", node=node), request.form.get("identity", "")
        return perform(lambda: actions.adopt(node, identity), "", here)
    if request.form.get("action") != "tombstone":
        raise ApiError(400, "INVALID_ACTION")
    here, done = url_for("topics.topic", topic=topic), f"Tombstoned {node} for {topic}."
    return perform(lambda: actions.tombstone(topic, node), done, here, Role.ADMIN)
