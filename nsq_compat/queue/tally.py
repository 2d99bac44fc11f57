"""What happens so often that it must not be logged each time."""

from typing import Final

SECONDS: Final = 10.0
"""Between two log lines about the same."""


class Tally:
    """Counts, and says now and then how many there were."""

    def __init__(self) -> None:
        self._count = 0
        self._silent_until = 0.0

    def add(self, count: int, now: float) -> int:
        """So many more. Returns how many to speak of now; 0: not yet."""
        self._count += count
        if now < self._silent_until:
            return 0
        said, self._count = self._count, 0
        self._silent_until = now + SECONDS
        return said
