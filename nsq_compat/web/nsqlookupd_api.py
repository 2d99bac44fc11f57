"""nsqlookupd's HTTP API: lookups, lists, the changes an operator may make, and metrics.

Answers may name hundreds of thousands of topics and producers. They are therefore joined from encoded JSON: producers
as `registry.registration_db` describes them, and names, which need no escapes. Lists are in order of registration
(nsqlookupd: in no order).
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nsq_compat import NSQ_VERSION, build_info
from nsq_compat.net.event_loop import turns, yield_to_loop
from nsq_compat.policy.access import ADMIN, OPERATE, READ
from nsq_compat.protocol.go_json import dumps
from nsq_compat.registry.registration_db import Producer, Registration, RegistrationDb, Tombstone
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import (
    EMPTY,
    JSON,
    MIN_PIECE_BYTES,
    OPEN,
    TOPIC,
    V1,
    ApiError,
    Application,
    Refusal,
    Route,
    encoded_json,
    json_response,
    long_response,
    plain,
    required,
    required_name,
)
from nsq_compat.web.metrics import READY, Metrics, monitoring_routes
from nsq_compat.web.profiling import Profiling

if TYPE_CHECKING:
    from prometheus_client.core import Metric

GO_ZERO_TIME_NS: Final = -6795364578871345152
"""Go's zero time, which /debug shows for a tombstone that does not exist."""
_ENTRIES_AT_ONCE: Final = 1024
_MAX_BLOCK_BYTES: Final = 2 * MIN_PIECE_BYTES
"""Of small nodes in a list of nodes."""
_MAX_KEPT: Final = 1024
_MAX_KEPT_BYTES: Final = 1024
"""Encoded producers that each /debug keeps, and their size: many of them may wait for slow clients."""


class NsqlookupdApi(Application):
    """The handler of nsqlookupd's HTTP port. `now` is monotonic seconds, `now_ns` the wall clock."""

    def __init__(
        self,
        db: RegistrationDb,
        metrics: Metrics,
        policy: RegistrationPolicy,
        now: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
        refuse: Refusal | None = None,
    ) -> None:
        self._db = db
        self._policy = policy
        self._now = now
        self._now_ns = now_ns
        metrics.collect_from(self._collect)
        super().__init__(
            {
                "/ping": {"GET": Route(lambda request: plain("OK"), OPEN)},
                **monitoring_routes(metrics, lambda: READY),
                "/info": {"GET": Route(self.info, READ)},
                "/lookup": {"GET": Route(self.lookup, READ, topics_in=TOPIC)},
                "/topics": {"GET": Route(self.topics, READ)},
                "/channels": {"GET": Route(self.channels, READ, topics_in=TOPIC)},
                "/nodes": {"GET": Route(self.nodes, READ)},
                "/debug": {"GET": Route(self.debug, ADMIN)},
                "/topic/create": {"POST": Route(self.create_topic, OPERATE, topics_in=TOPIC)},
                "/topic/delete": {"POST": Route(self.delete_topic, ADMIN, topics_in=TOPIC)},
                "/topic/tombstone": {"POST": Route(self.tombstone, OPERATE, topics_in=TOPIC)},
                "/channel/create": {"POST": Route(self.create_channel, OPERATE, topics_in=TOPIC)},
                "/channel/delete": {"POST": Route(self.delete_channel, ADMIN, topics_in=TOPIC)},
                **Profiling().routes("/debug/pprof"),
            },
            refuse,
        )

    def info(self, request: Request) -> Response:
        return json_response({"version": NSQ_VERSION, "nsq_compat": build_info()})

    def _collect(self) -> Iterable["Metric"]:
        """The sizes of the registration database. No metric has the name of a topic."""
        # prometheus_client is an extra.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield CounterMetricFamily(
            "nsqlookupd_registrations_refused_total",
            "Connections of nsqds that were refused at IDENTIFY.",
            value=self._policy.refused,
        )
        now, db = self._now(), self._db
        active = sum(1 for _ in db.nodes(now))
        nodes = GaugeMetricFamily("nsqlookupd_nodes", "Registered nsqd nodes, by state.", labels=("state",))
        nodes.add_metric(("active",), active)
        nodes.add_metric(("inactive",), len(db.producers) - active)
        yield nodes
        tombstones = sum(
            db.is_tombstoned(producer, topic, now) for producer in db.producers for topic in producer.tombstones
        )
        for name, help, value in (
            ("nsqlookupd_topics", "Registered topics.", len(db.topics)),
            ("nsqlookupd_channels", "Registered channels.", sum(len(db.channels(topic)) for topic in db.topics)),
            ("nsqlookupd_tombstones", "Topics of nodes that lookups leave out.", tombstones),
        ):
            yield GaugeMetricFamily(name, help, value=value)

    # --- Lookups ------------------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Response:
        topic = required(request, "topic")
        try:
            channels, producers = self._db.lookup(topic, self._now())
        except KeyError:
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        described = b"},".join([producer.described for producer in producers])
        if producers:
            described += b"}"
        return encoded_json(b'{"channels":%b,"producers":[%b]}' % (_names(channels), described))

    def topics(self, request: Request) -> Response:
        return encoded_json(b'{"topics":%b}' % _names(self._db.topics))

    def channels(self, request: Request) -> Response:
        topic = required(request, "topic")
        return encoded_json(b'{"channels":%b}' % _names(self._db.channels(topic)))

    def nodes(self, request: Request) -> Response:
        return long_response(self._nodes(self._now()), JSON)

    def _nodes(self, now: float) -> Iterator[bytes]:
        yield b'{"producers":['
        for number, nodes in enumerate(_blocks(self._node(producer, now) for producer in self._db.nodes(now))):
            if number:
                yield b","
            yield _joined(nodes)
        yield b"]}"

    def _node(self, producer: Producer, now: float) -> bytes:
        """An object. Answers that wait for slow clients share it, because there may be many of them."""
        if producer.listed:
            return producer.listed
        # nsqadmin reads the two lists in parallel.
        if producer.tombstones:
            is_tombstoned = self._db.is_tombstoned
            tombstones = dumps([is_tombstoned(producer, topic, now) for topic in producer.topics]).encode("ascii")
        else:
            tombstones = b"[%b]" % b",".join([b"false"] * len(producer.topics))
        node = b'%b,"tombstones":%b,"topics":%b}' % (producer.described, tombstones, _names(producer.topics))
        if not producer.tombstones:  # these expire
            producer.listed = node
        return node

    def debug(self, request: Request) -> Response:
        """The whole database, for debugging. What changes meanwhile may be missing."""
        yield_to_loop()  # many requests may come at once, and each has to sort
        registrations: list[Registration | None] = [None, *self._db.registrations()]
        registrations.sort(key=_key)
        return Response(200, headers=(JSON, V1), stream=_Pieces(_dump(self._db, registrations)))

    # --- Changes -----------------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Response:
        self._db.create_topic(required_name(request, "topic"))
        return EMPTY

    def delete_topic(self, request: Request) -> Response:
        self._db.delete_topic(required(request, "topic"))
        return EMPTY

    def create_channel(self, request: Request) -> Response:
        self._db.create_channel(required_name(request, "topic"), required_name(request, "channel"))
        return EMPTY

    def delete_channel(self, request: Request) -> Response:
        try:
            self._db.delete_channel(required_name(request, "topic"), required_name(request, "channel"))
        except KeyError:
            raise ApiError(404, "CHANNEL_NOT_FOUND") from None
        return EMPTY

    def tombstone(self, request: Request) -> Response:
        topic, node = required(request, "topic"), required(request, "node")
        self._db.tombstone(topic, node, self._now(), self._now_ns())
        return EMPTY


def _blocks(nodes: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """The same nodes; small ones together, most of them so many that `long_response` does not copy what they make."""
    block: list[bytes] = []
    size = 0
    for node in nodes:
        if block and size + len(node) > _MAX_BLOCK_BYTES:
            yield tuple(block)
            block.clear()
            size = 0
        block.append(node)
        size += len(node)
    if block:
        yield tuple(block)


def _joined(nodes: tuple[bytes, ...]) -> bytes:
    return nodes[0] if len(nodes) == 1 else _joined_small(nodes)


@lru_cache(maxsize=64)  # of 20,000 nodes; after changes, what is outdated stays for a while: 16 MB at most
def _joined_small(nodes: tuple[bytes, ...]) -> bytes:
    """Answers that wait for slow clients share this, as they do large nodes."""
    return b",".join(nodes)


def _names(names: Collection[str]) -> bytes:
    """A JSON array of valid names."""
    return b'["%b"]' % '","'.join(names).encode("ascii") if names else b"[]"


# --- /debug -----------------------------------------------------------------------------------------------------------


class _Pieces:
    """A ``BodyStream`` of short pieces, which are made when the client has taken those before, and it is its turn.

    Hundreds of clients may read at once, so they take turns, and others are served in between.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.is_over = self.is_whole = False
        self.next_wakeup = float("inf")
        self._pieces = pieces
        self._wake: Callable[[], None] = _no_connection
        self._awaits_turn = False
        self._has_turn = False

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def data_to_send(self, now: float) -> bytes:
        if self.is_over or not self._has_turn:
            if not (self.is_over or self._awaits_turn):
                self._awaits_turn = True
                turns().call(self._begin_turn)
            return b""
        self._has_turn = False
        found: list[bytes] = []
        size = 0
        for piece in self._pieces:
            found.append(piece)
            size += len(piece)
            if size >= MIN_PIECE_BYTES or len(found) >= _ENTRIES_AT_ONCE:
                self._wake()  # for the next turn, once the client has taken this
                return b"".join(found)
        self.is_over = self.is_whole = True
        return b"".join(found)

    def stalled(self) -> None:
        pass

    def close(self) -> None:
        self.is_over = True
        self._pieces = iter(())
        wake, self._wake = self._wake, _no_connection
        wake()

    def _begin_turn(self) -> None:
        self._awaits_turn = False
        self._has_turn = True
        self._wake()


def _no_connection() -> None: ...


def _dump(db: RegistrationDb, registrations: Iterable[Registration | None]) -> Iterator[bytes]:
    """An object in JSON: the producers of each of these registrations that has any. Some pieces are empty."""
    entries: dict[Producer, bytes] = {}
    separator = b"{"
    for registration in registrations:
        # Copied, because they may change before the next piece.
        producers = list(db.producers if registration is None else registration.producers)
        if not producers:
            yield b""
            continue
        yield b'%b"%b":[' % (separator, _key(registration).encode("ascii"))
        separator = b","
        for number, producer in enumerate(producers):
            entry = _entry_of(registration, producer, entries)
            yield b"," + entry if number else entry
        yield b"]"
    yield b"}" if separator == b"," else b"{}"


def _key(registration: Registration | None) -> str:
    """Of None: the key of all producers."""
    if registration is None:
        return "client::"
    return f"{registration.category}:{registration.topic}:{registration.channel}"


def _entry_of(registration: Registration | None, producer: Producer, entries: dict[Producer, bytes]) -> bytes:
    """The producer as part of a registration; `entries` has some of those without a tombstone."""
    if registration is not None and not registration.channel and registration.topic in producer.tombstones:
        return _entry(producer, producer.tombstones[registration.topic])
    entry = entries.get(producer)
    if entry is None:
        entry = _entry(producer)
        if len(entry) <= _MAX_KEPT_BYTES:
            if len(entries) >= _MAX_KEPT:
                entries.clear()
            entries[producer] = entry
    return entry


def _entry(producer: Producer, tombstone: Tombstone | None = None) -> bytes:
    info = producer.info
    members = {
        "broadcast_address": info.broadcast_address,
        "hostname": info.hostname,
        "http_port": info.http_port,
        "id": producer.id,
        "last_update": producer.last_update_ns,
        "tcp_port": info.tcp_port,
        "tombstoned": tombstone is not None,
        "tombstoned_at": GO_ZERO_TIME_NS if tombstone is None else tombstone.at_ns,
        "topology_region": info.topology_region,
        "topology_zone": info.topology_zone,
        "version": info.version,
    }
    return dumps(members).encode("utf-8")
