"""How a consumer slows down when handling fails, as NSQ's do: stop, wait, try one message, wait less or longer.

Whoever owns it tells it each result and the time; it says at which pace messages may come. It knows no connections.
"""

import enum
from dataclasses import dataclass


class Pace(enum.Enum):
    FLOWING = "flowing"
    WAITING = "waiting"
    """Nothing is asked for until `until`; results are of what came before and count no more."""
    TESTING = "testing"
    """One message is asked for; its result decides."""


@dataclass(slots=True)
class Backoff:
    """Level n waits ``first * 2 ** (n - 1)`` seconds, at most `longest`. A `longest` of 0 turns it off."""

    first: float = 2.0
    longest: float = 120.0
    level: int = 0
    pace: Pace = Pace.FLOWING
    until: float = 0.0

    def failed(self, now: float) -> bool:
        """True when the pace has changed."""
        if self.pace is Pace.WAITING or self.longest <= 0:
            return False
        # Further levels would wait no longer, and would have to be gone down again one by one.
        if self._wait(self.level) < self.longest or self.level == 0:
            self.level += 1
        self._rest(now)
        return True

    def succeeded(self, now: float) -> bool:
        """True when the pace has changed."""
        if self.pace is not Pace.TESTING:
            return False
        self.level -= 1
        if self.level:
            self._rest(now)
        else:
            self.pace = Pace.FLOWING
        return True

    def passed(self, now: float) -> bool:
        """Whether the wait is over now: the pace is ``TESTING`` then."""
        if self.pace is not Pace.WAITING or now < self.until:
            return False
        self.pace = Pace.TESTING
        return True

    def _rest(self, now: float) -> None:
        self.pace = Pace.WAITING
        self.until = now + self._wait(self.level)

    def _wait(self, level: int) -> float:
        return float(min(self.longest, self.first * 2 ** (level - 1)))
