"""Pushes the figures of /stats to a statsd, again and again: --statsd-address and what belongs to it.

Nothing here is worth waiting for: names are looked up in a thread, a packet that does not leave at once is lost, an
address that cannot be resolved is tried again next time. What the counters would have said is said then.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event

from nsq_compat.net.dialer import Resolver
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqd.statsd_lines import StatsdLines, packets
from nsq_compat.protocol.durations import SECOND
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.snapshot import snapshot
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

_STOP_SECONDS = 1.0
_RESOLVE_SECONDS = 5.0
_NOT_SPREAD_OVER = 1.0
"""Seconds at the end of an interval in which nothing is sent (nsqd)."""
_TOPICS_AT_ONCE = 100
_PAUSE_SECONDS = 0.001
"""Between two turns of the event loop; with a sleep of 0 it would not look at its sockets."""


class StatsdPush:
    """`memory` gives the memory figures of /stats. Observes its broker, to know what is gone."""

    def __init__(self, options: NsqdOptions, broker: Broker, memory: Callable[[], Mapping[str, int]]) -> None:
        self._address = options.statsd_address
        self._resolver = Resolver(self._address, socket.SOCK_DGRAM)
        self._interval = options.statsd_interval / SECOND
        self._packet_size = options.statsd_udp_packet_size
        self._memory = memory if options.statsd_mem_stats else None
        self._lines = StatsdLines(options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral)
        self._broker = broker
        self._stopping = Event()
        self._pushing: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Push for the first time when an interval is over."""
        self._broker.observers.append(self)
        self._pushing = gevent.spawn(self._push_until_stopped)

    def stop(self) -> None:
        """What is left of a push that began goes out at once."""
        self._stopping.set()
        if self._pushing is not None:
            self._pushing.join(_STOP_SECONDS)
            self._pushing.kill()
            log.info("STATSD: closing")

    def topic_created(self, topic: Topic) -> None: ...

    def topic_deleted(self, topic: Topic) -> None:
        self._lines.forget_topic(topic.name)

    def channel_created(self, topic: Topic, channel: Channel) -> None: ...

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._lines.forget_channel(topic.name, channel.name)

    def _push_until_stopped(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval, time.monotonic())
            try:
                self._push()
            except Exception:  # the top of a greenlet that must not end
                log.exception("STATSD: pushing failed")

    def _push(self) -> None:
        try:
            family, target = self._resolver.resolve(_RESOLVE_SECONDS)[0]
            sender = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            log.error("failed to create UDP socket to statsd(%s) - %s", self._address, error)
            return
        with sender:
            sender.setblocking(False)
            log.info("STATSD: pushing stats to %s", self._address)
            self._send(sender, packets(self._all_lines(), self._packet_size), target)

    def _all_lines(self) -> Iterator[bytes]:
        for number, topic in enumerate(snapshot(self._broker, time.monotonic(), include_clients=False), 1):
            yield from self._lines.of_topic(topic)
            if not number % _TOPICS_AT_ONCE:
                gevent.sleep(_PAUSE_SECONDS)
        if self._memory is not None:
            yield from self._lines.of_memory(self._memory())

    def _send(self, sender: socket.socket, datagrams: Sequence[bytes], target: tuple[Any, ...]) -> None:
        """Spread over the interval, so that statsd's buffer need not hold all of them (nsqd)."""
        pause = max(0.0, self._interval - _NOT_SPREAD_OVER) / max(1, len(datagrams))
        lost, reason = 0, ""
        for datagram in datagrams:
            try:
                sender.sendto(datagram, target)
            except OSError as error:
                lost, reason = lost + 1, str(error)
            self._stopping.wait(pause)
        if lost:
            log.warning("STATSD: lost %d of %d packets to %s - %s", lost, len(datagrams), self._address, reason)
