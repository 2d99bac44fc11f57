"""Takes snapshots of the whole cluster in intervals, for rates, history, alerts and fast pages."""

import logging
import time

import gevent

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.peek import oldest_messages
from nsq_compat.cluster.snapshot import take_snapshot

log = logging.getLogger(__name__)

_CLIENTS_INTERVAL = 6
"""One in so many samples includes clients, the largest part of nsqd's stats, and the ages of messages."""


class Sampler:
    """`interval` in seconds; 0 turns sampling off."""

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
        samples = 0
        while True:
            began = time.monotonic()
            try:
                with_clients = samples % _CLIENTS_INTERVAL == 0
                snapshot = take_snapshot(self._cluster, time.time(), clients=with_clients, let_others_run=gevent.sleep)
                self._history.add(snapshot, gevent.sleep)
                if with_clients:
                    self._history.oldest = oldest_messages(self._cluster.client, snapshot)
            except Exception:  # the top of a greenlet that must not end
                log.exception("SAMPLER: failed")
            samples += 1
            # A slow cluster is sampled less often.
            elapsed = time.monotonic() - began
            gevent.sleep(max(self._interval - elapsed, self._interval / 2))
