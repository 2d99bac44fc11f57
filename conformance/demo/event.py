"""Page views and orders of a small shop: a seed always gives the same events at the same times.

A body is a JSON object: ``key`` (the page), ``kind`` (``view`` or ``order``), ``time`` (of the event, in Unix seconds),
``amount`` (of the order, two decimals; 0 for a view). Some events are published long after they happened, as if by
phones that were offline: a reader that groups by time must wait for them or drop them.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

EVENTS_A_SECOND = 45.0
"""Average rate. It varies by a third over a day, and doubles in a rush."""

_DAY_SECONDS = 240.0
"""The length of the shop's day; short, so that a chart of some minutes shows one."""
_RUSH_SLOT_SECONDS, _RUSH_SECONDS, _RUSH_SHARE = 20, 8, 0.2
PAGES = ("/", "/lamps", "/lamps/desk", "/chairs", "/chairs/oak", "/tables", "/rugs", "/basket", "/help", "/imprint")
_WEIGHTS = [1 / rank for rank in range(1, len(PAGES) + 1)]
_ORDER_SHARE, _LATE_SHARE = 0.08, 0.02


@dataclass(frozen=True, slots=True)
class Event:
    """`published` and `happened` are seconds since the start of the stream; `happened` may be negative."""

    published: float
    happened: float
    key: str
    kind: str
    amount: float

    def body(self, began: float) -> bytes:
        """The message body; `began` is the start of the stream in Unix seconds."""
        time = round(began + self.happened, 3)
        return json.dumps({"key": self.key, "kind": self.kind, "time": time, "amount": self.amount}).encode()


def pace(seconds: float, seed: int) -> float:
    """The rate at this time after the start, as a multiple of the average without rushes."""
    slot, within = divmod(seconds, _RUSH_SLOT_SECONDS)
    rush = within < _RUSH_SECONDS and random.Random(f"{seed} {slot:.0f}").random() < _RUSH_SHARE
    return 0.92 + 0.35 * math.sin(math.tau * seconds / _DAY_SECONDS) + (1.0 if rush else 0.0)


def events(seed: int, events_a_second: float = EVENTS_A_SECOND) -> Iterator[Event]:
    """Yield events without end, in the order of publishing."""
    dice = random.Random(seed)
    now = 0.0
    while True:
        now += dice.expovariate(events_a_second * pace(now, seed))
        late = dice.uniform(5, 60) if dice.random() < _LATE_SHARE else dice.expovariate(5)
        (key,) = dice.choices(PAGES, _WEIGHTS)
        ordered = dice.random() < _ORDER_SHARE
        amount = round(dice.lognormvariate(3.5, 0.8), 2) if ordered else 0.0
        yield Event(now, now - late, key, "order" if ordered else "view", amount)
