"""Received bytes on their way into a reader that takes them as they become usable.

Pieces are joined only when a reader said it could go on (`needed`), so a body of a megabyte that arrives in a thousand
reads is copied once, not a thousand times. `position` moves as the reader consumes, and what lies behind it is never
lost, wherever the reader stops.
"""


class ReceiveBuffer:
    """Bytes of one direction of one connection.

    `data` from `position` on is what can be read now; more may wait until `needed` bytes are there in all.
    """

    def __init__(self, needed: int) -> None:
        self.data = b""
        self.position = 0
        self.needed = needed
        self._later: list[bytes] = []
        self._later_size = 0

    def append(self, data: bytes) -> bool:
        """Take what was received; true when there is enough to go on."""
        self._later.append(data)
        self._later_size += len(data)
        return len(self.data) - self.position + self._later_size >= self.needed

    def gather(self) -> bytes:
        """Everything unread, as one piece and with `position` 0: it becomes `data`."""
        rest = self.data[self.position :] if self.position else self.data
        if self._later:
            # A read that follows a fully consumed one is used as it is.
            rest = b"".join([rest, *self._later]) if rest or len(self._later) > 1 else self._later[0]
            self._later = []
            self._later_size = 0
        self.data = rest
        self.position = 0
        return rest

    def hand_back(self) -> bytes:
        """Everything unread, taken out."""
        rest = self.gather()
        self.data = b""
        return rest
