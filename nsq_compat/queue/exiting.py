"""The refusals every part of the queue shares."""


class Refused(Exception):
    """A message is not taken. The text is for the client."""


class Exiting(Refused):
    """The topic or channel is being deleted, or the daemon stops or drains. Clients know the word."""

    def __str__(self) -> str:
        return "exiting"
