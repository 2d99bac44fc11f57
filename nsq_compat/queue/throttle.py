"""A channel's messages at no more than a rate: a token bucket in front of the line of its consumers.

Nobody polls: consumers that find the bucket empty wait in their line as they do when there is no message, and the
schedule's alarm, set to when there will be a token, wakes as many of them as there are tokens, in turn.
"""

from collections.abc import Callable
from typing import Final

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.line import Line, NearestFirst, Waiting
from nsq_compat.queue.policies import Rate
from nsq_compat.queue.schedule import Schedule

TICK_SECONDS: Final = 0.005
"""Between two alarms, at least: a high rate comes in small batches."""
_ROUNDING: Final = 1e-9


class Throttle(Line):
    """Stands where the channel's line stood; `line` is that one, and everybody in it stays.

    `wake_channel` makes the channel call `wake`, if there is something and it is not paused.
    """

    def __init__(self, line: Line, schedule: Schedule, wake_channel: Callable[[], None]) -> None:
        super().__init__()
        self.line = line
        self.waiting = line.waiting
        self.alarm = NEVER
        self._nearest_first = line if isinstance(line, NearestFirst) else None
        self._schedule = schedule
        self._wake_channel = wake_channel
        self._rate = Rate(1.0, 1)
        self._tokens = 0.0
        self._filled = 0.0  # when that was so

    def follow(self, rate: Rate, now: float) -> None:
        """From now on keep to this rate; the bucket begins full."""
        if rate != self._rate:
            self._rate, self._tokens, self._filled = rate, float(rate.burst), now

    @property
    def is_empty(self) -> bool:
        """Whether a message would have to wait for its token."""
        return self._whole < 1

    @property
    def _whole(self) -> int:
        return int(self._tokens + _ROUNDING)

    # --- As a line ----------------------------------------------------------------------------------------------------

    def share(self, consumer: Waiting, depth: int) -> int:
        return self.line.share(consumer, min(depth, self._whole))

    def wait(self, consumer: Waiting) -> None:
        self.line.wait(consumer)

    def leave(self, consumer: Waiting) -> bool:
        return self.line.leave(consumer)

    def wake(self, depth: int) -> None:
        self.line.wake(min(depth, self._whole))

    def took(self, consumer: Waiting, count: int, room: int, depth: int, now: float) -> None:
        """It was given `count` of the frames it had room for, and `depth` are left."""
        self._fill(now)
        self._tokens -= count
        self._schedule.at(self._next(now), self)
        if self._nearest_first is not None:
            self._nearest_first.took(consumer, count, room, min(depth, self._whole), now)

    # --- As something with an alarm -----------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> float:
        self._fill(now)
        self._wake_channel()
        return self._next(now)

    def _fill(self, now: float) -> None:
        gained = (now - self._filled) * self._rate.per_second
        self._tokens = min(float(self._rate.burst), self._tokens + gained)
        self._filled = now

    def _next(self, now: float) -> float:
        """When there is a token, or all there can be."""
        missing = (1.0 if self.is_empty else self._rate.burst) - self._tokens
        if missing <= _ROUNDING:
            return NEVER
        return now + max(missing / self._rate.per_second, TICK_SECONDS)
