"""Making a log durable in another thread, while it is appended to in its own."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

from nsq_compat.queue.descriptors import File
from nsq_compat.queue.files import Files
from nsq_compat.queue.segment import Segment


class Target(NamedTuple):
    """A segment to be synced: its descriptor, and where it ended when the job was made."""

    segment: Segment
    fd: int
    end: int


class SyncJob:
    """What a thread does to make a log durable. ``run`` touches nothing but descriptors that stay open meanwhile."""

    def __init__(self, files: Files, targets: Sequence[Target], folders: Sequence[tuple[File, int]]) -> None:
        self.targets = targets
        self.folders = folders
        self._files = files
        self.done = 0
        self.is_poisoned = any(target.segment.poisoned for target in targets)

    def run(self) -> None:
        """Raises ``OSError``; nothing of what the job covers may be called durable then."""
        if self.is_poisoned:
            raise OSError(errno.EIO, "an earlier sync of the log failed")
        for target in self.targets:
            self._files.fdatasync(target.fd)
            self.done += 1
        for _, fd in self.folders:
            self._files.fsync(fd)

    @property
    def failed(self) -> Sequence[Target]:
        """Of what an error leaves in doubt for ever, because the system would not tell a second time."""
        if self.is_poisoned:
            return [target for target in self.targets if target.segment.poisoned]
        if self.done == len(self.targets):  # it was a folder: their names are in doubt
            return self.targets
        return self.targets[self.done : self.done + 1]
