"""What a channel holds, looked at without taking anything."""

import heapq
from collections.abc import Iterable
from itertools import chain, islice
from typing import NamedTuple

from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.in_flight import InFlight


class Look(NamedTuple):
    """Frames, those first that something will happen to first; moments are monotonic seconds."""

    waiting: list[bytes]
    deferred: list[tuple[float, bytes]]
    """When it is due."""
    in_flight: list[tuple[float, bytes]]
    """When its consumer's time is over."""


def look_at(waiting: list[bytes], deferred: Deferred, flights: Iterable[InFlight], count: int) -> Look:
    """At most `count` of each kind, at a cost that does not depend on how many there are. Raises ``OSError``."""
    first_of_each = chain.from_iterable(islice(each.look(), count) for each in flights)
    return Look(waiting, deferred.look(count), heapq.nsmallest(count, first_of_each))


def latest_of(waiting: list[bytes], deferred: Deferred, flights: Iterable[InFlight], count: int) -> Look:
    """At most `count` of each kind and consumer, those that came last; what is in flight is among what waits."""
    newest = (islice(reversed(each.frames.values()), count) for each in flights)
    return Look([*waiting, *chain.from_iterable(newest)], deferred.latest(count), [])
