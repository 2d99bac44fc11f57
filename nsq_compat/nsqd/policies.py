"""Policies: the tables `[[policies]]` of the config file, which Go's nsqd ignores, and sending dead letters."""

import logging
import re
import time
from typing import Final

import gevent
from gevent.event import Event

from nsq_compat.cli.flags import load_config
from nsq_compat.cli.kinds import OptionError
from nsq_compat.policy.dead_letters import DeadLetterQueues
from nsq_compat.policy.policies import Policies, PolicyError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between attempts to send dead letters while the disk or the dead-letter topic is full."""
_KEY: Final = "policies"
_TABLE: Final = re.compile(rf"""\s*\[\[\s*["']?{_KEY}["']?\s*\]\]""")
_ANY_TABLE: Final = re.compile(r"\s*\[")


def load_policies(path: str) -> Policies:
    """The policies in a config file; none if `path` is empty. Raises ``OptionError``, which names the line."""
    if not path:
        return Policies()
    try:
        return Policies(load_config(path).get(_KEY, ()))
    except PolicyError as error:
        line = _line_of(path, error)
        where = f"line {line}: " if line else ""
        raise OptionError(f"failed to load config file {path} - {where}{error}") from None


def _line_of(path: str, error: PolicyError) -> int:
    """The line of the setting, or else of the policy; 0 if neither is found."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        lines = file.read().splitlines()
    begins = [number for number, line in enumerate(lines, 1) if _TABLE.match(line)]
    if not 0 < error.number <= len(begins):
        return 0
    begin = begins[error.number - 1]
    setting = re.compile(rf"""\s*["']?{re.escape(error.key)}["']?\s*=""")
    for number, line in enumerate(lines[begin:], begin + 1):
        if _ANY_TABLE.match(line):
            break
        if error.key and setting.match(line):
            return number
    return begin


class DeadLetterSender:
    """Publishes dead letters in a greenlet, because publishing may wait for the disk."""

    def __init__(self, dead_letters: DeadLetterQueues) -> None:
        self._dead_letters = dead_letters
        self._wanted = Event()
        self._stop = Event()
        self._sending: gevent.Greenlet[[], None] | None = None
        dead_letters.wake = self._wanted.set

    def start(self) -> None:
        self._sending = gevent.spawn(self._send_until_stopped)

    def stop(self) -> None:
        """Send what can be sent; the rest returns to its channel at the next start."""
        self._stop.set()
        self._wanted.set()
        if self._sending is not None:
            self._sending.join()
        while self._dead_letters.is_waiting and self._send():
            pass

    def _send_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while self._dead_letters.is_waiting and not self._stop.is_set():
                self._stop.wait(0.0 if self._send() else RETRY_SECONDS)  # other greenlets run, even if this is 0

    def _send(self) -> bool:
        try:
            return self._dead_letters.send(time.monotonic(), time.time_ns())
        except Exception:  # the top of a greenlet that must not end
            log.exception("dead letters cannot be sent")
            return False
