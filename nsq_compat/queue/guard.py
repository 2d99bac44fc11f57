"""Who stands before a topic and lets messages in, or does not. NSQ knows one reason not to: the end."""

from typing import Final, Protocol

from nsq_compat.queue.exiting import Exiting


class Guard(Protocol):
    def admit(self, count: int, now: float) -> None:
        """So many messages are published. Raises ``Refused``."""


class _Closed:
    def admit(self, count: int, now: float) -> None:
        raise Exiting


CLOSED: Final[Guard] = _Closed()
"""Lets nothing in, for good."""
