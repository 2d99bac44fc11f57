"""A filter of ``dedupe`` on memcached, for several consumers. Each slot is a key of memcached.

A claim expires after `claim_seconds`, so that the message of a killed consumer can be handled by another. The time
should be a little less than nsqd's message timeout. A kept key stays until its slot is overwritten or memcached evicts
it.

If memcached fails, every key is new: duplicates may be handled, but no message is lost.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from nsq_compat.client.dedupe import Filter, KeyState, slot_of

log: Final = logging.getLogger(__name__)

_MARKS: Final = {KeyState.NEW: b"-", KeyState.BUSY: b"?", KeyState.SEEN: b"+"}
"""The first byte of a slot's value; the digest follows."""
_STATES: Final = {mark: state for state, mark in _MARKS.items()}
_MAX_TRIES: Final = 3


class MemcachedFilter(Filter):
    """`client` is a thread-safe pymemcache client. Consumers that share a filter need the same `slots` and `prefix`."""

    def __init__(self, client: Any, slots: int, *, claim_seconds: int = 55, prefix: str = "nsq-seen-") -> None:
        if slots < 1 or claim_seconds < 1:
            raise ValueError(f"slots and claim_seconds must be 1 or more, not {slots!r} and {claim_seconds!r}")
        self.slots = slots
        self.failures: int = 0
        """Failed requests to memcached."""
        self._client = client
        # An expiry of -1 deletes the slot.
        self._expiries = {KeyState.NEW: -1, KeyState.BUSY: claim_seconds, KeyState.SEEN: 0}
        self._prefix = prefix

    def update(self, wanted: bytes, change: Callable[[KeyState], KeyState]) -> KeyState:
        slot = f"{self._prefix}{slot_of(wanted, self.slots)}"
        try:
            for _ in range(_MAX_TRIES):
                value, token = self._client.gets(slot)
                before = _STATES[value[:1]] if value is not None and value[1:] == wanted else KeyState.NEW
                after = change(before)
                if after == before:
                    return before
                content, expiry = _MARKS[after] + wanted, self._expiries[after]
                if value is None:
                    done = self._client.add(slot, content, expiry, noreply=False)
                else:
                    done = self._client.cas(slot, content, token, expiry, noreply=False)
                if done:
                    return before
        except Exception as error:  # pymemcache raises many kinds
            self.failures += 1
            log.warning("memcached: %s", error)
        return KeyState.NEW  # also if the slot keeps changing: it is treated as overwritten
