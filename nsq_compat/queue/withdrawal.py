"""Takes messages out of a channel by their ids, wherever they are: for an operator, over HTTP.

A search is done in steps of some milliseconds, between which other clients are served: first the messages in flight,
then those in memory, the deferred ones, and a few at a time those in the log. Meanwhile the channel delivers nothing
(``Channel.hold``), so that no message moves to a place that was searched before. If a step comes too late for that, the
search begins again. So an id that is `missing` in the end was not in the channel when the search began.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from nsq_compat.protocol.message import message_ids
from nsq_compat.queue.channel import Channel

_LOGGED_AT_ONCE: Final = 8
"""Messages that are searched for in the log in one step."""


class Withdrawal:
    """`missing` are the ids not found so far, in order. `is_done` when there is nothing more to search."""

    def __init__(self, channel: Channel, ids: Iterable[bytes]) -> None:
        self.missing = dict.fromkeys(ids)
        self.is_done = False
        self._channel = channel
        self._steps = self._search()
        self._held_until = 0.0

    def step(self, now: float) -> list[bytes]:
        """Search on; returns the frames that were taken out, with the attempts of their next delivery.

        The caller must put them elsewhere or drop them before it lets others run. Raises ``OSError``, having taken
        nothing in this step.
        """
        channel = self._channel
        if self._held_until and not channel.is_held_until(self._held_until):
            self._steps = self._search()
        self._held_until = channel.hold(now)
        try:
            frames = next(self._steps, None)
        except OSError:
            self.end()
            raise
        for each in message_ids(frames or ()):
            self.missing.pop(each, None)
        if frames:
            channel.on_change()
        if frames is None or not self.missing:
            self.end()
        return frames or []

    def end(self) -> None:
        """Let the channel deliver again."""
        self.is_done = True
        self._channel.end_hold()

    def _search(self) -> Iterator[list[bytes]]:
        channel, backlog, missing = self._channel, self._channel.backlog, self.missing
        yield channel.take_in_flight(missing.keys())
        is_whole = False
        while not is_whole:
            frames: list[bytes] = []
            with suppress(BlockingIOError):
                frames = backlog.remove(missing.keys())
                is_whole = not frames
            yield frames
        at = 0
        while at >= 0:
            frames = []
            with suppress(BlockingIOError):
                frames, at = backlog.deferred.remove(missing.keys(), at)
            yield frames
        sought = list(missing)
        while sought:
            frames = []
            with suppress(BlockingIOError):
                frames = backlog.cursor.remove_logged(set(sought[:_LOGGED_AT_ONCE]))
                del sought[:_LOGGED_AT_ONCE]
            yield frames
