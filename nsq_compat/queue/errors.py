"""Why a publish is refused, and the check that refuses it."""

from typing import Final, Protocol


class Refused(Exception):
    """A message is not taken. The text is for the client."""


class Exiting(Refused):
    """The topic or channel is being deleted, or the daemon stops or drains. Clients know the word."""

    def __str__(self) -> str:
        return "exiting"


class Admission(Protocol):
    def admit(self, count: int, now: float) -> None:
        """So many messages are published. Raises ``Refused``."""


class _Closed:
    def admit(self, count: int, now: float) -> None:
        raise Exiting


REFUSES_ALL: Final[Admission] = _Closed()
"""Lets nothing in, for good."""
