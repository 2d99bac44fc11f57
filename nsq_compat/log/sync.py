"""Making a log durable: what is not yet, and the job that a thread does while the log is appended to."""

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from nsq_compat.log.descriptors import Descriptors, File
from nsq_compat.log.files import Files
from nsq_compat.log.segment import Segment


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


class Unsynced:
    """The noting of one log. A segment stays in until a job has secured or given up all of it."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._segments: dict[Segment, None] = {}
        self._folders: list[File] = []

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    def add(self, segment: Segment) -> None:
        """It was written to, or is going to be."""
        self._segments[segment] = None

    def add_folder(self, path: str) -> None:
        """A name in there is new."""
        # A job under way, which pins its folders, may be too early for it.
        if not any(folder.path == path and not folder.pins for folder in self._folders):
            self._folders.append(File(path, os.O_RDONLY | os.O_DIRECTORY))

    def discard(self, segment: Segment) -> None:
        """Its file is gone."""
        self._segments.pop(segment, None)

    def begin_sync(self) -> SyncJob:
        """What makes all of it durable. Raises ``OSError`` when the files cannot be opened."""
        segments = [segment for segment in self._segments if segment.needs_sync and not segment.removed]
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
        """Take note of how the job went; `active` is still written to, so it stays in."""
        for target in job.targets:
            self._descriptors.unpin(target.segment.file)
            if error is None:
                target.segment.synced = max(target.segment.synced, target.end)
        for segment, _, end in job.failed if error else ():
            segment.sync_failed_end = max(segment.sync_failed_end, end)
            segment.poisoned = segment.abandoned = True
        for folder, _ in job.folders:
            self._descriptors.unpin(folder)
            if error is None and folder in self._folders:
                self._folders.remove(folder)
                self._descriptors.close(folder)
        for segment in [each for each in self._segments if each.removed or not (each.needs_sync or each is active)]:
            del self._segments[segment]

    def close(self) -> None:
        """Close the folders; the segments are the log's to close."""
        for folder in self._folders:
            self._descriptors.close(folder)
