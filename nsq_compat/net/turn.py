"""Who has something to send at the end of a turn of the event loop, in the order in which they asked.

One callback for many of them: to the loop a message for ten consumers is what one for a single consumer is. After
`AT_ONCE` the loop is asked again, which looks at its sockets when that has gone on for a while.
"""

from collections.abc import Callable
from typing import Final, Protocol

AT_ONCE: Final = 64
"""Senders. Where each takes 10 us, the loop may look at its sockets within a millisecond."""


class Sender(Protocol):
    """Whoever has something to send."""

    def flush_when_due(self) -> None:
        """Send it. Raises nothing: the others are not to blame."""


class Turn:
    """One event loop's. `at_its_end` calls back once, when everybody who is ready has been heard."""

    def __init__(self, at_its_end: Callable[[Callable[[], None]], object]) -> None:
        self.due: list[Sender] = []
        self._at_its_end = at_its_end

    def add(self, sender: Sender) -> None:
        """Once for each turn."""
        # Hot: runs for every synchronous PUB.
        if not self.due:
            self._at_its_end(self._end)
        self.due.append(sender)

    def _end(self) -> None:
        now = self.due[:AT_ONCE]
        self.due = self.due[AT_ONCE:]  # and who asks meanwhile is behind them
        if self.due:
            self._at_its_end(self._end)
        for sender in now:
            sender.flush_when_due()
