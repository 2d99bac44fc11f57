"""--status-every: how long requests took, a line on stderr after every so many."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from nsq_compat.protocol.errors import without_secrets
from nsq_compat.tools.program import say

_FEW: Final = 100
"""With fewer times the 99th percentile is the longest one."""


class RequestTimes:
    """Of all destinations together and, when there are several, of each. Any thread may tell it."""

    def __init__(self, addresses: Sequence[str], every: int, say: Callable[[str], object] = say) -> None:
        self.count = 0
        """Requests so far."""
        self._say = say
        self._lock = threading.Lock()
        self._all = _Times(every, "[aggregate]:")
        self._each: dict[str, _Times] = {}
        if len(addresses) > 1:
            self._each = {each: _Times(every, f"[{without_secrets(each)}]:") for each in addresses}
        if 0 < every < _FEW:
            say(f"Warning: use more than {_FEW} status values for accurate percentiles (configured with {every})")

    def add(self, address: str, seconds: float) -> None:
        with self._lock:
            self.count += 1
            times = [*filter(None, [self._each.get(address)]), self._all]
            lines = [line for line in (each.add(seconds) for each in times) if line]
        for line in lines:
            self._say(line)


class _Times:
    def __init__(self, every: int, name: str) -> None:
        self._every = every
        self._name = name
        self._since = 0
        self._last: deque[float] = deque(maxlen=max(0, every))

    def add(self, seconds: float) -> str | None:
        """The line, when it is due."""
        if self._every <= 0:
            return None
        self._last.append(seconds)
        self._since += 1
        if self._since <= self._every:
            return None
        # nsq_to_http: the line about so many comes with the one behind them, which counts for the next line too.
        self._since = 1
        return self._line()

    def _line(self) -> str:
        times = sorted(self._last)
        average = sum(times) / len(times)
        return (
            f"{self._name} finished {len(times)} - 99th: {_percentile(times, 0.99) * 1000:.2f}ms"
            f" - 95th: {_percentile(times, 0.95) * 1000:.2f}ms - avg: {average * 1000:.2f}ms"
        )


def _percentile(times: Sequence[float], share: float) -> float:
    # nsq_to_http: rounded up, and half a place further.
    return times[min(len(times) - 1, math.ceil(share * len(times) + 0.5))]
