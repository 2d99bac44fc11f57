"""Drain: a node that is to go takes nothing more, gives away what it has, and ends.

Publishing is refused, nsqlookupd forgets this node, consumers who are connected go on and others may still come. When
every channel is empty, nothing in flight nor deferred, or the time is over, it is done; what is left then stays in the
data path, as after any stop.
"""

import logging
import time
from collections.abc import Iterator

import gevent
from gevent.event import Event

from nsq_compat.nsqd.lookup_peers import LookupPeers
from nsq_compat.queue.broker import Broker

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1


class Drain:
    """Begun once, never taken back. `patience` in seconds, 0 for any time; `done` is set when the daemon may stop."""

    def __init__(self, broker: Broker, lookup_peers: LookupPeers, patience: float) -> None:
        self.done = Event()
        self.begun = False
        self._broker = broker
        self._lookup_peers = lookup_peers
        self._patience = patience
        self._waiting: gevent.Greenlet[[], None] | None = None

    def begin(self) -> None:
        """Returns at once."""
        if not self.begun:
            self.begun = True
            log.info("NSQ: draining")
            self._broker.refuse_publishing()
            self._waiting = gevent.spawn(self._wait)

    def stop(self) -> None:
        """The daemon stops, whatever there is left."""
        if self._waiting is not None:
            self._waiting.kill()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._patience
        try:
            self._lookup_peers.stop()
            # Asking is cheap while there is something: the first that has it ends the search.
            while any(self._left()):
                if self._patience and time.monotonic() >= deadline:
                    log.warning("NSQ: drained not quite in time, %d messages stay", sum(self._left()))
                    return
                gevent.sleep(_LOOK_SECONDS)
            log.info("NSQ: drained")
        finally:
            self.done.set()

    def _left(self) -> Iterator[int]:
        """What consumers have still to take. A topic nobody has ever consumed keeps what it has."""
        for topic in self._broker.topics.values():
            if topic.channels or topic.awaits_channels:
                yield topic.depth
            for channel in topic.channels.values():
                yield channel.depth + channel.in_flight_count + channel.deferred_count
