"""The nodes of a producer: connections made when needed, penalties for failures, and the order of attempts."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from nsq_compat.client.connection import Connection, ConnectionLost, split_address
from nsq_compat.client.settings import ConnectionSettings

_FIRST_PENALTY = 1.0
_MAX_PENALTY = 60.0


class Node:
    """An nsqd. It has at most one connection, which threads share."""

    def __init__(self, address: str, settings: ConnectionSettings) -> None:
        split_address(address)
        self.address = address
        self.penalized_until = 0.0
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._penalty = _FIRST_PENALTY

    @property
    def connection(self) -> Connection | None:
        """The open connection, if there is one."""
        connection = self._connection
        return None if connection is None or connection.is_closed else connection

    def connect(self, deadline: float) -> Connection:
        """The open connection, made if necessary. Raises ``ConnectionLost``, at the deadline at the latest."""
        if connection := self.connection:
            return connection
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectionLost(f"{self.address}: not connected in time")
        try:
            return self.connection or self._make_connection(deadline)
        finally:
            self._lock.release()

    def _make_connection(self, deadline: float) -> Connection:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionLost(f"{self.address}: not connected in time")
        connection = Connection(self.address, replace(self._settings, timeout=min(self._settings.timeout, left)))
        connection.open()
        self._connection = connection
        threading.Thread(target=connection.run, name=f"nsqd {self.address}", daemon=True).start()
        return connection

    def penalize(self, now: float) -> None:
        """Use other nodes first for a while, which doubles each time. Called after a failure."""
        self.penalized_until = now + self._penalty
        self._penalty = min(2 * self._penalty, _MAX_PENALTY)

    def reset(self) -> None:
        """Remove the penalty. Called after a success."""
        self.penalized_until = 0.0
        self._penalty = _FIRST_PENALTY


class Candidates:
    """The nodes to try for one publish. Each copy is published in its own thread; no node gets two copies.

    Each node may be tried twice, because a connection may have ended unnoticed while it was idle.
    """

    def __init__(self, nodes: Iterable[Node], attempts: int) -> None:
        order = list(nodes)
        self._order = deque([*order, *order])
        self._left = attempts
        self._taken: set[Node] = set()
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """The number of attempts left."""
        return self._left

    def take(self) -> Node | None:
        """The next node that no other copy uses; None if there is none, or no attempt is left."""
        with self._lock:
            for _ in range(len(self._order) if self._left > 0 else 0):
                node = self._order.popleft()
                if node not in self._taken:
                    self._taken.add(node)
                    self._left -= 1
                    return node
                self._order.append(node)
        return None

    def give_back(self, node: Node) -> None:
        """Allow a node without a copy to be tried again."""
        with self._lock:
            self._taken.discard(node)


class Nodes:
    """All nodes of a producer."""

    def __init__(
        self, addresses: Iterable[str], settings: ConnectionSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = [Node(address, settings) for address in dict.fromkeys(addresses)]
        if not self._nodes:
            raise ValueError("no nsqd_tcp_addresses to publish to")
        self._clock = clock
        self._turn = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def in_order(self) -> list[Node]:
        """The nodes in the order to try them: each call begins with the next node; penalized nodes are last."""
        now, turn = self._clock(), self._turn
        self._turn = (turn + 1) % len(self._nodes)
        rotated = [*self._nodes[turn:], *self._nodes[:turn]]
        return sorted(rotated, key=lambda node: max(0.0, node.penalized_until - now))
