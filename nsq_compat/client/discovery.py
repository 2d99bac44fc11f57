"""Discovery of the nsqd that have a topic: polls every nsqlookupd.

An nsqlookupd that is down, slow or faulty does not affect the others: each is queried in its own thread, and the time
and size of its response are limited.
"""

import json
import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nsq_compat.bounded_http import FAILURES, Deadline, bounded_session, exchange
from nsq_compat.client.settings import SubscriptionSettings
from nsq_compat.protocol.names import address_error, printable

log = logging.getLogger(__name__)

_MAX_ANSWER_BYTES = 16 << 20
_MAX_LOGGED = 5


class LookupFailed(Exception):
    """An nsqlookupd did not return a usable response."""


def lookup_url(address: str, topic: str) -> str:
    """The URL to look up `topic`. `address` is ``host:port``, or a URL; its path (default ``/lookup``) and query are
    kept."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("topic", topic)])
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


class Listing(NamedTuple):
    """The nsqd of a topic as ``host:port``, and descriptions of the registrations skipped as invalid."""

    nodes: set[str]
    skipped: tuple[str, ...] = ()


def ask(address: str, topic: str, *, connect_timeout: float = 1.0, request_timeout: float = 2.0) -> Listing:
    """Query one nsqlookupd. Raises ``LookupFailed``. An unknown topic has no nodes.

    `request_timeout` limits the whole request, in seconds.
    """
    try:
        with bounded_session() as session:
            answer = exchange(
                session,
                "GET",
                lookup_url(address, topic),
                Deadline(request_timeout),
                connect_timeout=connect_timeout,
                max_body=_MAX_ANSWER_BYTES,
                headers={"Accept": "application/vnd.nsq; version=1.0"},
                follow_redirects=True,
            )
        if answer.status == 404:
            return Listing(set())
        if answer.status >= 400:
            raise LookupFailed(f"{address}: got status {answer.status}")
        return _listing(json.loads(answer.body))
    except TimeoutError as error:
        raise LookupFailed(f"{address}: the answer takes too long") from error
    except FAILURES as error:
        raise LookupFailed(f"{address}: {error}") from error


def _listing(answer: Any) -> Listing:
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    producers = data.get("producers") if isinstance(data, dict) else None
    if not isinstance(producers, list):
        raise ValueError("the response has no list of producers")
    nodes, skipped = set(), []
    for producer in producers:
        fields = producer if isinstance(producer, dict) else {}
        host, port = fields.get("broadcast_address"), fields.get("tcp_port")
        if problem := address_error(host, TCP=port):
            skipped.append(f"nsqd {printable(fields.get('hostname', ''))}: {problem}")
        else:
            nodes.add(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}")
    return Listing(nodes, tuple(skipped))


class Discovery:
    """Polls every nsqlookupd until stopped. After each response, `found` is called with the nodes that any of them
    lists.

    The interval between polls is extended by a random share, so that consumers that were started together do not poll
    together.
    """

    def __init__(
        self,
        topic: str,
        lookupd_http_addresses: Iterable[str],
        found: Callable[[set[str]], object],
        settings: SubscriptionSettings,
    ) -> None:
        self._topic = topic
        self._lookupds = sorted(set(lookupd_http_addresses))
        self._found = found
        self._settings = settings
        self._stopped = threading.Event()
        self._poll_again = threading.Event()
        self._querying: set[str] = set()
        self._known: dict[str, set[str]] = {}
        self._skipped: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._poll_loop, name=f"lookup {self._topic}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._poll_again.set()

    def poll_now(self) -> None:
        """Poll again without waiting for the interval."""
        self._poll_again.set()

    def next_interval(self) -> float:
        """Seconds until the next poll."""
        return self._settings.lookupd_poll_interval * (1 + random.random() * self._settings.lookupd_poll_jitter)

    def _poll_loop(self) -> None:
        while not self._stopped.is_set():
            self._poll_again.clear()
            try:
                self._poll()
            except Exception:  # the top of a thread, which must go on
                log.exception("[%s] internal error", self._topic)
            self._poll_again.wait(self.next_interval())

    def _poll(self) -> None:
        for address in self._lookupds:
            with self._lock:
                # Not queried again before it has responded.
                if address in self._querying:
                    continue
                threading.Thread(target=self._ask, args=(address,), name=f"lookup {address}", daemon=True).start()
                self._querying.add(address)

    def _ask(self, address: str) -> None:
        try:
            listing = ask(
                address,
                self._topic,
                connect_timeout=self._settings.lookupd_connect_timeout,
                request_timeout=self._settings.lookupd_request_timeout,
            )
        except LookupFailed as error:
            log.warning("[%s] nsqlookupd %s", self._topic, error)
            listing = None
        except Exception:  # the top of a thread
            log.exception("[%s] nsqlookupd %s: internal error", self._topic, address)
            listing = None
        if listing is not None:
            self._log_skipped(address, listing.skipped)
        with self._lock:
            self._querying.discard(address)
            # If it fails, its last response is dropped: nodes that only it listed are not reconnected to.
            self._known[address] = listing.nodes if listing else set()
            known = set().union(*self._known.values())
        if listing is not None and not self._stopped.is_set():
            self._found(known)

    def _log_skipped(self, lookupd: str, skipped: tuple[str, ...]) -> None:
        """Log each new registration once; nsqlookupd lists it with every poll."""
        # Without the lock: only one thread at a time queries an nsqlookupd.
        before, self._skipped[lookupd] = self._skipped.get(lookupd, frozenset()), frozenset(skipped)
        new = sorted(self._skipped[lookupd] - before)
        for registration in new[:_MAX_LOGGED]:
            log.warning("[%s] nsqlookupd %s: skipped the registration of %s", self._topic, lookupd, registration)
        if len(new) > _MAX_LOGGED:
            log.warning("[%s] nsqlookupd %s: skipped %d more", self._topic, lookupd, len(new) - _MAX_LOGGED)
