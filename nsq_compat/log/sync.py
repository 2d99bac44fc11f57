"""Makes a log durable: tracks unsynced segments, and syncs them in a thread while the log is appended to."""

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from nsq_compat.log.descriptors import Descriptors, File
from nsq_compat.log.files import Files
from nsq_compat.log.segment import Segment


class Target(NamedTuple):
    """A segment to be synced: its descriptor, and its end when the job was created."""

    segment: Segment
    fd: int
    end: int


class SyncJob:
    """One sync of a log. ``run`` is called in a thread; it uses only descriptors, which are pinned until it ends."""

    def __init__(self, files: Files, targets: Sequence[Target], folders: Sequence[tuple[File, int]]) -> None:
        self.targets = targets
        self.folders = folders
        self._files = files
        self.failed: Sequence[Target] = [target for target in targets if target.segment.poisoned]
        """If ``run`` raises: the targets that never become durable. The system reports a sync error only once."""
        self.next_offset = 0
        """The offset of the next message of the log when the job was created."""

    def run(self) -> None:
        """Sync. If it raises ``OSError``, nothing that the job covers counts as durable."""
        if self.failed:
            raise OSError(errno.EIO, "an earlier sync of the log failed")
        for target in self.targets:
            self.failed = [target]
            self._files.fdatasync(target.fd)
        self.failed = self.targets  # if a folder's sync fails, the names of all are in doubt
        for _, fd in self.folders:
            self._files.fsync(fd)


class Unsynced:
    """The unsynced segments and folders of one log. A segment stays until a sync of all its data succeeds or fails."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self.segments: dict[Segment, None] = {}  # a set in the order in which they were added
        self._folders: list[File] = []

    def add_folder(self, path: str) -> None:
        # A folder that a running job has pinned is added again, because the job may have synced it already.
        if not any(folder.path == path and not folder.pins for folder in self._folders):
            self._folders.append(File(path, os.O_RDONLY | os.O_DIRECTORY))

    def begin_sync(self) -> SyncJob:
        """Create a job that makes everything durable. Raises ``OSError`` if files cannot be opened."""
        segments = [segment for segment in self.segments if segment.needs_sync and not segment.removed]
        targets: list[Target] = []
        folders: list[tuple[File, int]] = []
        try:
            for segment in segments:
                targets.append(Target(segment, self._descriptors.pin(segment.file), segment.end))
            for folder in self._folders:
                folders.append((folder, self._descriptors.pin(folder)))
        except OSError:
            for file in [*(target.segment.file for target in targets), *(folder for folder, _ in folders)]:
                self._descriptors.unpin(file)
            raise
        return SyncJob(self._descriptors.files, targets, folders)

    def finish_sync(self, job: SyncJob, error: OSError | None, active: Segment | None) -> None:
        """Record the result of a job. `active` is still written to, so it stays tracked."""
        for target in job.targets:
            self._descriptors.unpin(target.segment.file)
        for segment, _, end in job.failed if error else job.targets:
            segment.settled = max(segment.settled, end)
            if error:
                segment.poisoned = segment.abandoned = True
        for folder, _ in job.folders:
            self._descriptors.unpin(folder)
            if error is None and folder in self._folders:
                self._folders.remove(folder)
                self._descriptors.close(folder)
        for segment in [each for each in self.segments if each.removed or not (each.needs_sync or each is active)]:
            del self.segments[segment]

    def close(self) -> None:
        """Close the folders. The log closes the segments."""
        for folder in self._folders:
            self._descriptors.close(folder)
