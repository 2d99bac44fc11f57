"""De-duplication: handles each message once, although NSQ may deliver it several times.

A filter remembers the keys of handled messages, in memory of fixed size. It is the opposite of a Bloom filter: a table
in which each slot contains the last key that was mapped to it. A key is forgotten when another key takes its slot, and
is then reported as new. A new key is never reported as seen. Keys are compared by digests of 126 bits.

A key is *claimed* while its message is handled, *kept* after a success, and *forgotten* after a failure, so that the
redelivered message is handled. A second delivery while the key is claimed is requeued. Finishing it would lose the
message if the first handler failed after nsqd's timeout.
"""

import enum
import hashlib
import math
import threading
from collections.abc import Callable
from typing import Any, Final

from nsq_compat.client.message import Message

DIGEST_SIZE: Final = 16
_STATE_MASK: Final = 3


class KeyState(enum.IntEnum):
    NEW = 0
    """Not seen, or forgotten."""
    BUSY = 1
    """Claimed: a handler is processing it."""
    SEEN = 2
    """Handled before."""


_STATES: Final = tuple(KeyState)


class Filter:
    """Remembers the states of keys. Thread-safe."""

    def claim(self, key: bytes) -> KeyState:
        """Return a key's state, and claim it if it is new, atomically."""
        return self.update(digest(key), lambda state: state or KeyState.BUSY)

    def keep(self, key: bytes) -> None:
        """Remember a claimed key: its message was handled."""
        self.update(digest(key), lambda state: state and KeyState.SEEN)

    def forget(self, key: bytes) -> None:
        """Forget a claimed key: its message was not handled."""
        self.update(digest(key), lambda state: KeyState.NEW)

    def update(self, wanted: bytes, change: Callable[[KeyState], KeyState]) -> KeyState:
        """Change the state of the key with this digest, atomically. Returns the state before: NEW without a slot."""
        raise NotImplementedError


def digest(key: bytes) -> bytes:
    """The digest that a filter stores; its two lowest bits are zero."""
    raw = hashlib.blake2b(key, digest_size=DIGEST_SIZE).digest()
    return raw[:-1] + bytes([raw[-1] & ~_STATE_MASK])


def slot_of(key_digest: bytes, slots: int) -> int:
    return int.from_bytes(key_digest[:8], "big") % slots


class SlotFilter(Filter):
    """A filter in this process. A slot takes 16 bytes, allocated by the system when first used."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be 1 or more, not {slots!r}")
        self.slots = slots
        self._table = bytearray(slots * DIGEST_SIZE)
        self._lock = threading.Lock()

    def update(self, wanted: bytes, change: Callable[[KeyState], KeyState]) -> KeyState:
        begin = slot_of(wanted, self.slots) * DIGEST_SIZE
        end = begin + DIGEST_SIZE - 1
        with self._lock:
            last = self._table[end]
            same = self._table[begin:end] == wanted[:-1] and last & ~_STATE_MASK == wanted[-1]
            before = _STATES[last & _STATE_MASK] if same else KeyState.NEW
            after = change(before)
            if after != before:
                self._table[begin : end + 1] = wanted[:-1] + bytes([wanted[-1] | after])
        return before


def body_of(message: Message) -> bytes:
    """The default key. Ids do not work, because two nsqd give the same body different ids."""
    return message.body


class Deduplicated:
    """A handler for ``Consumer`` and ``Reader`` that calls `handler` for new messages only.

    Messages with the same `key` are the same. `handler` may answer messages itself, immediately or later.
    """

    def __init__(
        self,
        handler: Callable[[Message], Any],
        seen: Filter,
        key: Callable[[Message], bytes] = body_of,
    ) -> None:
        self.duplicates: int = 0
        """Messages that were finished because they had been handled before."""
        self.postponed: int = 0
        """Messages that were requeued because they were being handled."""
        self._handler = handler
        self._seen = seen
        self._key = key

    def __call__(self, message: Message) -> Any:
        key = self._key(message)
        state = self._seen.claim(key)
        if state is KeyState.SEEN:
            self.duplicates += 1
            return True
        if state is KeyState.BUSY:
            self.postponed += 1
            message.requeue(backoff=False)
            return None
        message.on("finish", lambda message: self._seen.keep(key))
        message.on("requeue", lambda message: self._seen.forget(key))
        return self._handler(message)


# --- Size of a filter -------------------------------------------------------------------------------------------------


def overwritten(slots: int, later: int) -> float:
    """The probability that `later` further keys have overwritten a key: ``1 - (1 - 1/slots) ** later``."""
    return -math.expm1(later * math.log1p(-1 / slots)) if slots > 1 else float(later > 0)


def slots_for(kept: float, later: int) -> int:
    """The slots needed to keep a key with probability `kept` after `later` keys: ``1 / (1 - kept ** (1/later))``."""
    if not 0 < kept < 1:
        raise ValueError(f"kept must be a probability between 0 and 1, not {kept!r}")
    if later < 1:
        raise ValueError(f"later must be 1 or more, not {later!r}")
    return math.ceil(-1 / math.expm1(math.log(kept) / later))
