"""Discovery of the nsqd that have a topic.

`ask` queries one nsqlookupd; the time and size of its response are limited. `Discovery` decides when each nsqlookupd is
queried and which nodes are known. It uses neither I/O nor threads, and is not thread-safe.
"""

import json
import logging
import random
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nsq_compat.bounded_http import FAILURES, Answer, Deadline, bounded_session, exchange, reason_of
from nsq_compat.client.settings import SubscriptionSettings
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.names import address_error, printable

log: Final = logging.getLogger(__name__)

FIRST_POLL_DELAY = 1.0
"""Seconds until an nsqlookupd is asked again, if no nsqd has the topic. The delay doubles up to the usual interval."""
MAX_ANSWER_BYTES = 4 << 20
MAX_NODES = 1000
"""Nsqd of a topic at one nsqlookupd to which a client connects, each with threads of its own."""
_MAX_REGISTRATIONS = 10 * MAX_NODES
"""Of an answer, valid or not, that are read. A few megabytes may have a million."""
_MAX_LOGGED = 5
_NOT_NSQLOOKUPD = "is this nsqlookupd's HTTP address?"


def lookup_url(address: str, topic: str) -> str:
    """The URL to look up `topic` at ``host:port`` or at a URL with a path (default ``/lookup``) and a query."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("topic", topic)])
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


class Listing(NamedTuple):
    """The nsqd of a topic as ``host:port``, and descriptions of the registrations skipped as invalid."""

    nodes: set[str]
    skipped: tuple[str, ...] = ()


def ask(address: str, topic: str, settings: SubscriptionSettings, port: str = "TCP") -> Listing:
    """Query one nsqlookupd, within the timeouts, for the nsqds' TCP or HTTP addresses.

    An nsqlookupd with TLS must have a certificate for its name. An unknown topic has no nodes. Raises one of
    ``FAILURES``.
    """
    url = lookup_url(address, topic)
    tls = settings.tls_context(check_hostname=True) if url.lower().startswith("https:") else None
    with bounded_session(tls=tls) as session:
        answer = exchange(
            session,
            "GET",
            url,
            Deadline(settings.lookupd_request_timeout),
            connect_timeout=settings.lookupd_connect_timeout,
            max_body=MAX_ANSWER_BYTES,
            headers=lookup_headers(settings),
            follow_redirects=True,
        )
    return listing_of(answer, port)


def lookup_headers(settings: SubscriptionSettings) -> dict[str, str]:
    return {"Accept": "application/vnd.nsq; version=1.0", **settings.headers()}


def listing_of(answer: Answer, port: str) -> Listing:
    """The nodes in the answer of an nsqlookupd, by their TCP or HTTP `port`. Raises ``ValueError``."""
    if answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body:
        return Listing(set())
    if answer.status >= 400:
        raise ValueError(f"got status {answer.status}" + (f"; {_NOT_NSQLOOKUPD}" if answer.status == 404 else ""))
    return _listing(loaded(answer.body), port)


def loaded(body: bytes) -> Any:
    """The JSON value of an answer. Raises ``ValueError``."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the answer has too many levels") from None


def _listing(answer: Any, kind: str) -> Listing:
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    producers = data.get("producers") if isinstance(data, dict) else None
    if not isinstance(producers, list):
        raise ValueError(f"the answer has no list of producers; {_NOT_NSQLOOKUPD}")
    nodes, skipped = set[str](), list[str]()
    for producer in producers[:_MAX_REGISTRATIONS]:
        fields = producer if isinstance(producer, dict) else {}
        host, port = fields.get("broadcast_address"), fields.get(f"{kind.lower()}_port")
        if problem := address_error(host, **{kind: port}):
            skipped.append(f"nsqd {printable(fields.get('hostname', ''))}: {problem}")
        else:
            nodes.add(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}")
    if len(producers) > _MAX_REGISTRATIONS:
        skipped.append(f"{len(producers) - _MAX_REGISTRATIONS} of {len(producers)} nsqd: so many are not read")
    if len(nodes) > MAX_NODES:
        skipped.append(f"{len(nodes) - MAX_NODES} of {len(nodes)} nsqd: a client connects to {MAX_NODES} at most")
        nodes = set(sorted(nodes)[:MAX_NODES])
    return Listing(nodes, tuple(skipped))


def note_failure(topic: str, lookupd: str, error: Exception) -> None:
    """Log why an nsqlookupd could not be queried."""
    shown = without_secrets(lookupd)
    if isinstance(error, FAILURES):
        log.warning("[%s] nsqlookupd %s: %s", topic, shown, reason_of(error))
    else:
        log.error("[%s] nsqlookupd %s: internal error", topic, shown, exc_info=error)


class Discovery:
    """The nsqlookupds of a topic. Random jitter keeps consumers that started together from polling together."""

    def __init__(self, topic: str, lookupd_http_addresses: Iterable[str], settings: SubscriptionSettings) -> None:
        self.due: float = 0.0
        """The time of the next poll."""
        self.querying: set[str] = set()
        """The nsqlookupds that are being queried; `responded` removes them."""
        self._topic = topic
        self._settings = settings
        self._listings = {address: Listing(set()) for address in sorted(set(lookupd_http_addresses))}
        self._all_due = 0.0  # when all are polled again
        self._delay = 0.0
        self._without_nodes: set[str] = set()
        """The nsqlookupds that answered last that no nsqd has the topic."""

    def poll(self, now: float) -> list[str]:
        """The nsqlookupds to query now: those that have responded to their last query.

        While no nsqd has the topic, the polls between two regular ones query those that answered so.
        """
        self._delay = FIRST_POLL_DELAY if self._nodes() else max(FIRST_POLL_DELAY, 2 * self._delay)
        polled: Iterable[str] = self._listings
        if now >= self._all_due:
            self._all_due = now + self._jittered(self._settings.lookupd_poll_interval)
        else:
            polled = sorted(self._without_nodes)
        self.due = self._all_due
        return [address for address in polled if address not in self.querying]

    def poll_all(self) -> None:
        """Make a poll of every nsqlookupd due."""
        self.due = self._all_due = 0.0

    def responded(self, lookupd: str, listing: Listing | None, now: float) -> set[str]:
        """Record a response, or None for a failure. Returns the nodes to connect to, none after a failure.

        If no nsqlookupd lists a node, `due` becomes earlier.
        """
        self.querying.discard(lookupd)
        shown = without_secrets(lookupd)
        before = self._listings[lookupd].skipped
        if listing is None:
            # Its last response is dropped: nodes that only it listed are not reconnected to.
            self._listings[lookupd] = Listing(set(), before)
            return set()
        self._listings[lookupd] = listing
        if listing.nodes:
            self._without_nodes.discard(lookupd)
        elif not listing.skipped and lookupd not in self._without_nodes:
            self._without_nodes.add(lookupd)
            log.warning("[%s] nsqlookupd %s: no nsqd has this topic yet, asking again", self._topic, shown)
        nodes = self._nodes()
        if not nodes and self._without_nodes:
            self.due = min(self.due, now + self._jittered(self._delay))
        # nsqlookupd lists an invalid registration with every poll; it is logged once.
        new = sorted(set(listing.skipped) - set(before))
        for registration in new[:_MAX_LOGGED]:
            log.warning("[%s] nsqlookupd %s: skipped the registration of %s", self._topic, shown, registration)
        if len(new) > _MAX_LOGGED:
            log.warning("[%s] nsqlookupd %s: skipped %d more", self._topic, shown, len(new) - _MAX_LOGGED)
        return nodes

    def lookupds_of(self, node: str) -> list[str]:
        """The nsqlookupds that list a node."""
        return [lookupd for lookupd, listing in self._listings.items() if node in listing.nodes]

    def _nodes(self) -> set[str]:
        return set().union(*(each.nodes for each in self._listings.values()))

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + random.random() * self._settings.lookupd_poll_jitter)
