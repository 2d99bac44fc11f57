"""Handling a message once although NSQ delivers it again: which keys were seen, in memory of a fixed size.

The filter is the opposite of a Bloom filter: a table of slots, where a key's slot holds the last key that fell on it.
It may forget a key (another fell on its slot) and then calls it new; it never calls a new key seen. What is compared
is a digest of 16 bytes less two bits.

A key is *claimed* while its message is handled and *kept* once that was a success; a failure forgets it, so that the
redelivery is handled. A second delivery that comes while the first is being handled is neither: it is requeued. To
finish it would lose the message if the first handler fails after nsqd's timeout, because both are the same message.
"""

import enum
import hashlib
import logging
import math
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from nsq_compat.client.message import FINISH, REQUEUE, Message

log = logging.getLogger(__name__)

DIGEST_SIZE: Final = 16
_STATE_BITS: Final = 3
_CLAIMED: Final = 1
_KEPT: Final = 2


class KeyState(enum.Enum):
    NEW = "new"
    """Not seen, or forgotten: it is claimed now."""
    BUSY = "busy"
    """Somebody has claimed it and is not done."""
    SEEN = "seen"
    """It was handled."""


class Filter(Protocol):
    """Remembers keys; any thread may call it."""

    def claim(self, key: bytes) -> KeyState:
        """Test and set, in one step."""
        ...

    def keep(self, key: bytes) -> None:
        """It was handled."""
        ...

    def forget(self, key: bytes) -> None:
        """It was not handled: the next time it is new."""
        ...


def digest(key: bytes) -> bytes:
    """What a filter stores for a key; the two lowest bits are zero."""
    raw = hashlib.blake2b(key, digest_size=DIGEST_SIZE).digest()
    return raw[:-1] + bytes([raw[-1] & ~_STATE_BITS])


def slot_of(key_digest: bytes, slots: int) -> int:
    return int.from_bytes(key_digest[:8], "big") % slots


class SlotFilter:
    """In this process; 16 bytes a slot, taken from the system as they are used."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be 1 or more, not {slots!r}")
        self.slots = slots
        self._table = bytearray(slots * DIGEST_SIZE)
        self._lock = threading.Lock()

    def claim(self, key: bytes) -> KeyState:
        wanted = digest(key)
        with self._lock:
            state = self._state(wanted)
            if state:
                return KeyState.SEEN if state == _KEPT else KeyState.BUSY
            self._write(wanted, _CLAIMED)
        return KeyState.NEW

    def keep(self, key: bytes) -> None:
        self._change(key, _KEPT)

    def forget(self, key: bytes) -> None:
        self._change(key, 0)

    def _change(self, key: bytes, state: int) -> None:
        wanted = digest(key)
        with self._lock:
            if self._state(wanted):
                self._write(wanted, state)

    def _state(self, wanted: bytes) -> int:
        """Of this key; 0 if its slot holds another, or none."""
        begin = slot_of(wanted, self.slots) * DIGEST_SIZE
        last = self._table[begin + DIGEST_SIZE - 1]
        same = self._table[begin : begin + DIGEST_SIZE - 1] == wanted[:-1] and last & ~_STATE_BITS == wanted[-1]
        return last & _STATE_BITS if same else 0

    def _write(self, wanted: bytes, state: int) -> None:
        begin = slot_of(wanted, self.slots) * DIGEST_SIZE
        self._table[begin : begin + DIGEST_SIZE] = wanted[:-1] + bytes([wanted[-1] | state])


def body_of(message: Message) -> bytes:
    """The key unless another is given: a redundant nsqd gives the same body another id."""
    return message.body


class Deduplicated:
    """A handler around a handler, for ``Consumer`` and ``Reader``: it calls the other one for what is new.

    `key` says what makes two messages the same. A handler that answers by itself, at once or later, is followed.
    """

    def __init__(
        self,
        handler: Callable[[Message], Any],
        seen: Filter,
        key: Callable[[Message], bytes] = body_of,
    ) -> None:
        self.duplicates = 0
        """How many were finished because they were handled before."""
        self.postponed = 0
        """How many were requeued because somebody was handling them."""
        self._handler = handler
        self._seen = seen
        self._key = key

    def __call__(self, message: Message) -> Any:
        key = self._key(message)
        sight = self._seen.claim(key)
        if sight is KeyState.SEEN:
            self.duplicates += 1
            return True
        if sight is KeyState.BUSY:
            self.postponed += 1
            message.requeue(backoff=False)
            return None
        message.on(FINISH, lambda message: self._seen.keep(key))
        message.on(REQUEUE, lambda message: self._seen.forget(key))
        return self._handler(message)


# --- How large --------------------------------------------------------------------------------------------------------


def overwritten(slots: int, later: int) -> float:
    """The probability that a key has been overwritten after so many later ones: ``1 - (1 - 1/slots) ** later``."""
    return -math.expm1(later * math.log1p(-1 / slots)) if slots > 1 else float(later > 0)


def slots_for(kept: float, later: int) -> int:
    """How many slots keep a key with this probability after so many later ones: ``1 / (1 - kept ** (1/later))``."""
    if not 0 < kept < 1:
        raise ValueError(f"a probability between 0 and 1, not {kept!r}")
    if later < 1:
        raise ValueError(f"1 later key or more, not {later!r}")
    return math.ceil(-1 / math.expm1(math.log(kept) / later))
