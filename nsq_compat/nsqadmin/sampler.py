"""Looks at the whole cluster at regular intervals, so that pages have rates, history and a quick answer."""

import logging
import time

import gevent

from nsq_compat.cluster.ages import oldest_messages
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.snapshot import take_snapshot

log = logging.getLogger(__name__)

_WITH_CLIENTS = 6
"""Every so many looks clients are asked for too, most of what nsqd has to say, and the ages of messages."""


class Sampler:
    """`interval` in seconds; 0 for no sampling."""

    def __init__(self, cluster: Cluster, history: History, interval: float) -> None:
        self._cluster = cluster
        self._history = history
        self._interval = interval
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        if self._interval > 0:
            self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()

    def _run(self) -> None:
        looks = 0
        while True:
            began = time.monotonic()
            try:
                with_clients = looks % _WITH_CLIENTS == 0
                snapshot = take_snapshot(self._cluster, time.time(), clients=with_clients, breathe=_breathe)
                self._history.add(snapshot, _breathe)
                if with_clients:
                    self._history.oldest = oldest_messages(self._cluster.client, snapshot)
            except Exception:
                log.exception("SAMPLER: failed")
            looks += 1
            # A slow cluster is not asked more often than it can answer.
            took = time.monotonic() - began
            gevent.sleep(max(self._interval - took, self._interval / 2))


def _breathe() -> None:
    gevent.sleep(0)
