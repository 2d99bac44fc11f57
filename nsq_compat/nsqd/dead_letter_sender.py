"""Sends what was tried often enough to its dead-letter topic, in a greenlet: publishing may wait for the disk."""

import logging
import time
from typing import Final

import gevent
from gevent.event import Event

from nsq_compat.policy.dead_letters import DeadLetterQueues

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between two attempts at what was refused: the disk is full, or the dead-letter topic is."""


class DeadLetterSender:
    """Between `start` and `stop`, which sends what there still is, once."""

    def __init__(self, dead_letters: DeadLetterQueues) -> None:
        self._dead_letters = dead_letters
        self._wanted = Event()
        self._stop = Event()
        self._sending: gevent.Greenlet[[], None] | None = None
        dead_letters.wake = self._wanted.set

    def start(self) -> None:
        self._sending = gevent.spawn(self._send_for_ever)

    def stop(self) -> None:
        """What nobody takes now goes back to its channel with the next start."""
        self._stop.set()
        self._wanted.set()
        if self._sending is not None:
            self._sending.join()
        while self._dead_letters.is_waiting and self._send():
            pass

    def _send_for_ever(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while self._dead_letters.is_waiting and not self._stop.is_set():
                self._stop.wait(0.0 if self._send() else RETRY_SECONDS)  # either way others have their turn

    def _send(self) -> bool:
        try:
            return self._dead_letters.send(time.monotonic(), time.time_ns())
        except Exception:  # the top of a greenlet that must not end
            log.exception("dead letters cannot be sent")
            return False
