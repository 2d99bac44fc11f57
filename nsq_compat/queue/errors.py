"""Why a publish is refused, and the check that refuses it."""

from typing import Final, Protocol


class Refused(Exception):
    """A message is not accepted. The text is for the client."""


class Exiting(Refused):
    """The topic or channel is being deleted, or nsqd stops or drains. The text is NSQ's."""

    def __str__(self) -> str:
        return "exiting"


class Admission(Protocol):
    """A check before each publish to a topic. NSQ refuses for one reason only: the topic is exiting."""

    def admit(self, count: int, now: float) -> None:
        """Allow `count` messages to be published, or raise ``Refused``."""


class _Closed:
    def admit(self, count: int, now: float) -> None:
        raise Exiting


REFUSES_ALL: Final[Admission] = _Closed()
