"""What is left for a query at nsqd, so that one knows when it has done everything."""

import time
from collections.abc import Callable

from pyspark_nsq.nodes import HttpFailed, ask


def until_nothing_waits(options: dict[str, str], read_what_waits: Callable[[], None]) -> None:
    """Once more when nothing is left: a batch that was under way is, and what was set aside for a later one."""
    before = after = False
    while not (before and after):
        before = is_empty(options)
        read_what_waits()
        after = is_empty(options)


def is_empty(options: dict[str, str]) -> bool:
    """Whether nothing is left, once nothing is in flight to somebody who died."""
    while True:
        try:
            depth, in_flight = waiting(options)
        except HttpFailed:
            in_flight = 1
        if not in_flight:
            return not depth
        time.sleep(0.1)


def waiting(options: dict[str, str]) -> tuple[int, int]:
    """How many messages wait for the channel, and how many were given to somebody; of an nsqd that is there."""
    found = [0, 0]
    for address in options["nsqdHttpAddresses"].split(","):
        for name in options["subscribe"].split(","):
            stats = ask(address, "stats", 5, format="json", topic=name, channel=options["channel"])
            for topic in stats["topics"] or ():
                found[0] += topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
                found[1] += sum(channel["in_flight_count"] for channel in topic["channels"])
    return found[0], found[1]
