"""Received bytes that a reader cannot use yet: shared by the readers of frames, of nsqlookupd's protocol and of snappy.

Received pieces are joined only when the reader has enough to continue (`needed`), so that a body of a megabyte that
arrives in a thousand reads is copied once.
"""


class ReceiveBuffer:
    """Bytes of one direction of one connection.

    The reader reads `data` from `position`, which it advances. Later pieces are kept apart until there are `needed`
    unread bytes in total.
    """

    def __init__(self, needed: int) -> None:
        self.data = b""
        self.position = 0
        self.needed = needed
        self._later: list[bytes] = []
        self._later_size = 0

    def append(self, data: bytes) -> bool:
        """Add received bytes. True if the reader has enough to continue."""
        self._later.append(data)
        self._later_size += len(data)
        return len(self.data) - self.position + self._later_size >= self.needed

    def gather(self) -> bytes:
        """Join everything unread into `data`, with `position` 0."""
        rest = self.data[self.position :] if self.position else self.data
        if self._later:
            # After everything was read, a single new piece needs no copy.
            rest = b"".join([rest, *self._later]) if rest or len(self._later) > 1 else self._later[0]
            self._later = []
            self._later_size = 0
        self.data = rest
        self.position = 0
        return rest

    def hand_back(self) -> bytes:
        """Remove and return everything unread."""
        rest = self.gather()
        self.data = b""
        return rest
