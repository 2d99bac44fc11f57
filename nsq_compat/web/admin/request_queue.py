"""Limits of the requests that are answered at the same time, so that a visitor cannot use nsqadmin up.

Each holds what it has read of the cluster, up to some 50 MB, and a page takes up to 0.1 s to make, in which others
wait. Visitors with waiting requests take turns.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_OF_USER: Final = 4
"""A page of a cluster that does not answer takes `--page-timeout`."""
MAX_OF_ADDRESS: Final = 16
"""Many people may share one: behind a proxy, or a router."""
MAX_OF_ALL: Final = 32
MAX_WAITING: Final = 100
"""Of one visitor; further ones are refused."""


class TooMany(Exception):
    """Too many requests of the visitor wait."""


class ClientIsGone(Exception):
    """The client has closed its connection while its request waited."""


class Requester(NamedTuple):
    """A user or token, or an address, with the number of its requests that are answered at the same time."""

    name: str
    at_once: int


class RequestQueue:
    """`enter` waits until the request of a visitor may be answered; call `leave` afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: Counter[Requester] = Counter()
        self._count = 0
        self._waiting: OrderedDict[Requester, deque[threading.Event]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._waiting.values()))

    def enter(self, visitor: Requester, client_is_gone: Callable[[], bool] = lambda: False) -> bool:
        """Return whether it had to wait. Raises `TooMany` and `ClientIsGone`."""
        with self._lock:
            if visitor not in self._waiting and self._has_room(visitor):
                self._begin(visitor)
                return False
            turns = self._waiting.setdefault(visitor, deque())
            if len(turns) >= MAX_WAITING:
                raise TooMany
            turn = threading.Event()
            turns.append(turn)
        try:
            turn.wait()
        except BaseException:  # nsqadmin stops
            self._withdraw(visitor, turn)
            raise
        if client_is_gone():
            self.leave(visitor)
            raise ClientIsGone
        return True

    def leave(self, visitor: Requester) -> None:
        with self._lock:
            self._count -= 1
            self._answered[visitor] -= 1
            if not self._answered[visitor]:
                del self._answered[visitor]
            self._admit()

    def _has_room(self, visitor: Requester) -> bool:
        return self._count < MAX_OF_ALL and self._answered.get(visitor, 0) < visitor.at_once

    def _begin(self, visitor: Requester) -> None:
        self._count += 1
        self._answered[visitor] += 1

    def _admit(self) -> None:
        """Begin requests that wait, one of each visitor in turn."""
        while (visitor := next(filter(self._has_room, self._waiting), None)) is not None:
            turns = self._waiting.pop(visitor)
            turns.popleft().set()
            self._begin(visitor)
            if turns:
                self._waiting[visitor] = turns

    def _withdraw(self, visitor: Requester, turn: threading.Event) -> None:
        with self._lock:
            turns = self._waiting.get(visitor, deque())
            if turn in turns:
                turns.remove(turn)
                if not turns:
                    del self._waiting[visitor]
                return
        self.leave(visitor)
