"""Who has something to do at the end of a turn of the event loop, in the order in which they asked.

First what is to be done before anybody sends, then everybody who has something to send: to the loop a message for ten
consumers is what one for a single consumer is. Who reads last ends the turn right away; otherwise the loop is asked to.
After `AT_ONCE` senders it is asked again, and looks at its sockets when that has gone on for a while.
"""

from collections.abc import Callable
from typing import Final, Protocol

AT_ONCE: Final = 64
"""Senders. Where each takes 10 us, the loop may look at its sockets within a millisecond."""


class Loop(Protocol):
    """Of gevent's event loop what this needs."""

    @property
    def pendingcnt(self) -> int:
        """How many watchers have fired and were not called yet."""

    def run_callback(self, func: Callable[[], None]) -> object:
        """Call it once, when everybody who is ready has been heard."""


class Sender(Protocol):
    """Whoever has something to send."""

    def flush_when_due(self) -> None:
        """Send it. Raises nothing: the others are not to blame."""


class Turn:
    """One event loop's."""

    def __init__(self, loop: Loop) -> None:
        self.due: list[Sender] = []
        self._calls: list[Callable[[], None]] = []
        self._loop = loop
        self._held = False  # somebody is going to end it, and the loop need not
        self._asked = False  # the loop was asked to

    def add(self, sender: Sender) -> None:
        """Once for each turn."""
        # Hot: runs for every synchronous PUB.
        self.due.append(sender)
        if not self._held:
            self._ask()

    def call(self, callback: Callable[[], None]) -> None:
        """Before anybody sends."""
        self._calls.append(callback)
        if not self._held:
            self._ask()

    def begin_reading(self) -> None:
        """Called by the loop, to hear one of those who are ready; `end_reading` follows."""
        self._held = True

    def end_reading(self) -> None:
        """Whoever it was is heard; if it was the last, this is the end of the turn."""
        # Hot: runs for every synchronous PUB.
        self._held = False
        if self.due or self._calls:
            if self._loop.pendingcnt:
                self._ask()
            else:
                self._end()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.run_callback(self._end_as_asked)

    def _end_as_asked(self) -> None:
        self._asked = False
        self._end()

    def _end(self) -> None:
        try:
            if self._calls:
                calls, self._calls = self._calls, []
                self._held = True
                for call in calls:
                    call()
        finally:
            self._held = False
            self._send()

    def _send(self) -> None:
        now, self.due = self.due, []  # who asks meanwhile is behind them
        if len(now) > AT_ONCE:
            now, self.due = now[:AT_ONCE], now[AT_ONCE:]
            self._ask()
        for sender in now:
            sender.flush_when_due()
