"""File descriptors: how many there may be, and how many of them clients leave to files.

A daemon whose clients hold every descriptor cannot write a checkpoint. Clients who come when too many are in use wait
in the kernel's queue, as they do when there are none.
"""

import errno
import os
import resource

_MOST_LEFT = 512


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may allow itself (nsqd: Go's runtime does)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_left_by_clients() -> int:
    """How many descriptors clients may not take: a quarter, or twice what the logs keep open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_LEFT if soft == resource.RLIM_INFINITY else min(_MOST_LEFT, soft // 4)


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
