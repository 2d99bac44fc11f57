"""File descriptors: how many there may be, and how many of them clients leave to files.

A daemon whose clients hold every descriptor cannot write a checkpoint. Clients who come when too many are in use wait
in the kernel's queue, as they do when there are none.
"""

import errno
import os
import resource

_ENOUGH_FOR_FEW_TOPICS = 512
_MOST_LEFT = 4096


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may allow itself (nsqd: Go's runtime does)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_left_by_clients() -> int:
    """How many descriptors clients may not take: a quarter, or, where 512 are less than that, an eighth if it is more.

    Half of them are for logs, which are opened and closed again and again where more topics than that are busy.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_LEFT
    return min(soft // 4, max(_ENOUGH_FOR_FEW_TOPICS, soft // 8), _MOST_LEFT)


class ClientDescriptors:
    """What a listener asks before it accepts; `descriptor` is any that stays open."""

    def __init__(self, descriptor: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptor = descriptor
        self._end = float("inf") if soft == resource.RLIM_INFINITY else soft - descriptors_left_by_clients()

    def check(self) -> None:
        """Raises ``OSError`` when a client would get one of those left to files."""
        lowest = os.dup(self._descriptor)  # every descriptor below it is in use
        os.close(lowest)
        if lowest >= self._end:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
