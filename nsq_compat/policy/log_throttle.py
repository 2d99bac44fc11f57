"""Log lines about events that may be frequent. Apart from the queue, which nsqlookupd does not import."""

from typing import Final

LOG_SECONDS: Final = 10.0
"""Minimum time between two log lines about the same event."""


class LogThrottle:
    """Counts events that are too frequent to be logged one by one."""

    def __init__(self) -> None:
        self._count = 0
        self._silent_until = 0.0

    def add(self, count: int, now: float) -> int:
        """Count events. Returns the number of events to log now; 0 while the last log line is recent."""
        self._count += count
        if now < self._silent_until:
            return 0
        to_log, self._count = self._count, 0
        self._silent_until = now + LOG_SECONDS
        return to_log
