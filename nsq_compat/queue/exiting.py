"""The one refusal every part of the queue shares."""


class Exiting(Exception):
    """The topic or channel is being deleted, or the daemon stops or drains. Clients know the word."""

    def __str__(self) -> str:
        return "exiting"
