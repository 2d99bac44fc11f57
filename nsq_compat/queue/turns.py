"""Turns of clients at work of which only one piece is done at a time, such as the large publishes of a topic."""

from bisect import insort
from operator import itemgetter
from typing import Final, Generic, TypeVar

_Work = TypeVar("_Work")

_TURN: Final = itemgetter(0)


class Turns(Generic[_Work]):
    """The piece of work that is done now, and those that wait.

    A client with many pieces holds up another one by a single piece. `client` is any text that identifies one.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[int, _Work]] = []  # with the turns, in their order
        self._last: dict[str, int] = {}  # the last turn of a client, unless it is over

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, client: str, work: _Work) -> None:
        """Let it wait for the client's next turn, behind others with the same turn."""
        now = self._pieces[0][0] if self._pieces else 0
        if len(self._last) > len(self._pieces):
            self._last = {each: turn for each, turn in self._last.items() if turn >= now and self._pieces}
        turn = max(now, self._last.get(client, -1) + 1)
        self._last[client] = turn
        insort(self._pieces, (turn, work), key=_TURN)

    @property
    def first(self) -> _Work:
        """The piece that has its turn; there must be one."""
        return self._pieces[0][1]

    def remove(self, work: _Work) -> None:
        """Remove a piece that is done or given up. It may have been removed before."""
        self._pieces = [piece for piece in self._pieces if piece[1] is not work]
