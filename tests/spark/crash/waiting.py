"""Wait until nsqd has no messages left for a query."""

import time
from collections.abc import Callable

from pyspark_nsq.nodes import HttpFailed, ask


def until_nothing_waits(options: dict[str, str], read_waiting: Callable[[], None]) -> None:
    """Run a query until nothing is left, and once more for an unfinished batch and for orphans."""
    before = after = False
    while not (before and after):
        before = is_empty(options)
        read_waiting()
        after = is_empty(options)


def is_empty(options: dict[str, str]) -> bool:
    """Whether no message is left; waits for timeouts of messages in flight to killed consumers."""
    while True:
        try:
            depth, in_flight = waiting(options)
        except HttpFailed:
            in_flight = 1
        if not in_flight:
            return not depth
        time.sleep(0.1)


def waiting(options: dict[str, str]) -> tuple[int, int]:
    """The numbers of waiting messages and of messages in flight, of the nsqd that can be reached."""
    found = [0, 0]
    for address in options["nsqdHttpAddresses"].split(","):
        for name in options["subscribe"].split(","):
            stats = ask(address, "stats", 5, format="json", topic=name, channel=options["channel"])
            for topic in stats["topics"] or ():
                found[0] += topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
                found[1] += sum(channel["in_flight_count"] for channel in topic["channels"])
    return found[0], found[1]
