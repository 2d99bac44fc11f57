"""A filter of ``dedupe`` on memcached, for several consumers. Each slot is a key of memcached.

A claim expires after `claim_seconds`, so that the message of a killed consumer can be handled by another. The time
should be a little less than nsqd's message timeout. A kept key stays until its slot is overwritten or memcached evicts
it.

If memcached fails, every key is new: duplicates may be handled, but no message is lost.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from nsq_compat.client.dedupe import KeyState, digest, slot_of

log = logging.getLogger(__name__)

_CLAIMED: Final = b"?"
_KEPT: Final = b"+"
_EXPIRED: Final = -1  # an expiry that deletes the key
_MAX_TRIES: Final = 3

T = TypeVar("T")


class MemcachedFilter:
    """`client` is a thread-safe client of pymemcache, such as ``PooledClient``.

    `prefix` separates several filters on one memcached. Consumers that share a filter need the same `slots`.
    """

    def __init__(self, client: Any, slots: int, *, claim_seconds: int = 55, prefix: str = "nsq-seen-") -> None:
        if slots < 1 or claim_seconds < 1:
            raise ValueError(f"slots and claim_seconds must be 1 or more, not {slots!r} and {claim_seconds!r}")
        self.slots = slots
        self.failures = 0
        """Failed requests to memcached."""
        self._client = client
        self._claim_seconds = claim_seconds
        self._prefix = prefix

    def claim(self, key: bytes) -> KeyState:
        return self._or_default(lambda: self._claim(digest(key)), KeyState.NEW)

    def keep(self, key: bytes) -> None:
        self._or_default(lambda: self._change(digest(key), _KEPT, 0), None)

    def forget(self, key: bytes) -> None:
        self._or_default(lambda: self._change(digest(key), _CLAIMED, _EXPIRED), None)

    def _claim(self, wanted: bytes) -> KeyState:
        slot, claim = self._slot(wanted), _CLAIMED + wanted
        for _ in range(_MAX_TRIES):
            value, token = self._client.gets(slot)
            if value is None:
                done = self._client.add(slot, claim, self._claim_seconds, noreply=False)
            elif value[1:] == wanted:
                return KeyState.SEEN if value[:1] == _KEPT else KeyState.BUSY
            else:
                done = self._client.cas(slot, claim, token, self._claim_seconds, noreply=False)
            if done:
                return KeyState.NEW
        return KeyState.NEW  # the slot keeps changing: treat it as overwritten

    def _change(self, wanted: bytes, state: bytes, expire: int) -> None:
        slot = self._slot(wanted)
        value, token = self._client.gets(slot)
        if value is not None and value[1:] == wanted:
            self._client.cas(slot, state + wanted, token, expire, noreply=False)

    def _slot(self, wanted: bytes) -> str:
        return f"{self._prefix}{slot_of(wanted, self.slots)}"

    def _or_default(self, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except Exception as error:  # pymemcache raises many kinds
            self.failures += 1
            log.warning("memcached: %s", error)
            return otherwise
