"""Drain: before this node is retired, it refuses new messages, delivers those it has, and stops.

Publishing is refused and nsqlookupd forgets this node; connected consumers go on, and others may still connect. The
drain is done when every channel is empty, with no message in flight or deferred, or when its time is over. Remaining
messages stay in the data path, as after any stop.
"""

import logging
import time
from collections.abc import Iterator

import gevent
from gevent.event import Event

from nsq_compat.nsqd.lookup_peers import LookupPeers
from nsq_compat.queue.broker import Broker

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


class Drain:
    """Cannot be cancelled. `timeout` in seconds, 0 for none; `done` is set when the daemon may stop."""

    def __init__(self, broker: Broker, lookup_peers: LookupPeers, timeout: float) -> None:
        self.done = Event()
        self.begun = False
        self._broker = broker
        self._lookup_peers = lookup_peers
        self._timeout = timeout
        self._waiting: gevent.Greenlet[[], None] | None = None

    def begin(self) -> None:
        """Returns at once."""
        if not self.begun:
            self.begun = True
            log.info("NSQ: draining")
            self._broker.refuse_publishing()
            self._waiting = gevent.spawn(self._wait)

    def stop(self) -> None:
        """The daemon stops, whatever is left."""
        if self._waiting is not None:
            self._waiting.kill()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._timeout
        try:
            self._lookup_peers.stop()
            # Cheap while messages are left: the first topic that has some ends the search.
            while any(self._left()):
                if self._timeout and time.monotonic() >= deadline:
                    log.warning("NSQ: drained not quite in time, %d messages stay", sum(self._left()))
                    return
                gevent.sleep(_POLL_SECONDS)
            log.info("NSQ: drained")
        finally:
            self.done.set()

    def _left(self) -> Iterator[int]:
        """Numbers of undelivered messages. A topic without channels keeps its messages and is not counted."""
        for topic in self._broker.topics.values():
            if topic.channels or topic.awaits_channels:
                yield topic.depth
            for channel in topic.channels.values():
                yield channel.depth + channel.in_flight_count + channel.deferred_count
