"""Registrations that make no sense: a log line for each when it appears, however often nsqlookupd is asked."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5
"""Of each nsqlookupd, in a warning and in the log; of more only the number is said."""
_MOST_REMEMBERED: Final = 1000


def named(lookupd: str, skipped: Sequence[str]) -> tuple[str, ...]:
    """One text for each registration that an nsqlookupd's listing has and that is skipped; few of many."""
    texts = [f"nsqlookupd {lookupd}: skipped {each}" for each in skipped[:_MOST_NAMED]]
    if len(skipped) > _MOST_NAMED:
        texts.append(f"nsqlookupd {lookupd}: skipped {len(skipped) - _MOST_NAMED} more invalid registrations")
    return tuple(texts)


class SkippedLog:
    """Logs what is new. A listing of all nodes replaces what is known of its nsqlookupd, one of a topic adds to it."""

    def __init__(self) -> None:
        self._logged: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def note(self, lookupd: str, texts: Sequence[str], *, is_whole: bool) -> None:
        with self._lock:
            known = self._logged.setdefault(lookupd, set())
            new = [text for text in texts if text not in known]
            if is_whole or len(known) > _MOST_REMEMBERED:
                known.clear()
            known.update(texts)
        for text in new:
            log.warning("%s", text)
