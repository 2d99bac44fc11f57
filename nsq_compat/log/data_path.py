"""The folder given as --data-path: its layout, and the lock on it.

    nsqd.dat                         topics and channels, in Go's format: see ``metadata``
    nsqd.dat.bad-<n>                 a copy of a damaged nsqd.dat, for the operator
    <queue>.diskqueue.*.dat          messages of Go's nsqd, until they are imported: see ``godata.takeover``
    nsq_compat/                      our files; Go's nsqd ignores the folder
        <topic>.topic/               a topic's log and checkpoint
        <topic>.deleted-<n>/         the rest of a deleted topic, until it can be removed
        <topic>.importing/           a topic that is being imported from Go's files
        <topic>.replaced/            the previous state of that topic, while they are swapped
        imported/<n>/                Go's files, after their messages were imported
        identity                     the identity and epoch of the data path, with mirroring
        mirrors/<identity>/          a copy of another nsqd's data path, see ``nsqd.standby``
    nsq_compat.exported-<n>/         was nsq_compat/ until it was exported as Go's files: see ``godata.export``

nsqd locks the folder itself, as Go's nsqd does, so the two exclude each other.
"""

import errno
import fcntl
import itertools
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from nsq_compat.log.files import Files

FOLDER: Final = "nsq_compat"
TOPIC_SUFFIX: Final = ".topic"
MIRRORS: Final = "mirrors"
MIRROR_STATE: Final = "mirror.json"
"""In a copy: the state of the primary."""
_LEFTOVER: Final = re.compile(r".+\.deleted-[0-9]+")


class DataPathError(Exception):
    """The data path cannot be used. The text follows "failed to instantiate nsqd - "."""


class LaterVersion(OSError):
    """A file is of a later version of nsq_compat, and is not damaged: this version must not touch the data path.

    It has no number of an error, so its text is its `reason`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.filename = path

    def __str__(self) -> str:
        return "written by a later version of nsq_compat"


class NotMirrored(OSError):
    """The message is in the log, but not at the standby without which nsqd accepts none."""


def resolved(data_path: str) -> str:
    """The data path, or the current folder if the option is empty."""
    return data_path or os.getcwd()


def our_folder(data_path: str) -> str:
    return os.path.join(data_path, FOLDER)


def topic_folder(data_path: str, topic: str) -> str:
    return os.path.join(data_path, FOLDER, topic + TOPIC_SUFFIX)


class DataPathLock:
    """An exclusive lock on a data path, until `release` or the end of the process.

    Raises ``DataPathError``, with Go's texts, if the folder cannot be opened or is locked by another process.
    """

    def __init__(self, data_path: str) -> None:
        self._descriptor = _opened(data_path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            in_use = " (possibly in use by another instance of nsqd)" if error.errno == errno.EWOULDBLOCK else ""
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {data_path} - {reason(error)}{in_use}"
            ) from None

    def release(self) -> None:
        """Unlock, unless it is unlocked already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "DataPathLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_folder(data_path: str) -> None:
    """Raise ``DataPathError`` for an unusable data path. Neither locks nor creates anything."""
    os.close(_opened(data_path))
    _check_writable(data_path)
    if os.path.lexists(our_folder(data_path)):
        _check_writable(our_folder(data_path))


def _opened(data_path: str) -> int:
    try:
        return os.open(data_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: open {data_path}: {reason(error)}") from None


def make_our_folder(files: Files, data_path: str) -> None:
    """Create ``nsq_compat`` in the data path unless it exists. Raises ``DataPathError`` and ``OSError``."""
    path = our_folder(data_path)
    try:
        files.mkdir(path, 0o700)
        files.fsync_folder(data_path)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise DataPathError(f"cannot write to data-path: {path} is not a directory") from None
    except OSError as error:
        raise DataPathError(f"cannot write to data-path: mkdir {path}: {reason(error)}") from None
    _check_writable(path)


def topics_in(files: Files, data_path: str) -> list[str]:
    """The names of the topics that have a folder in the data path, sorted."""
    try:
        names = files.listdir(our_folder(data_path))
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(TOPIC_SUFFIX) for name in names if name.endswith(TOPIC_SUFFIX))


def remove_folder(files: Files, path: str) -> None:
    """Remove a folder and the files in it, if it exists. Raises ``OSError`` if there are folders in it."""
    try:
        names = files.listdir(path)
    except FileNotFoundError:
        return
    for name in names:
        with suppress(FileNotFoundError):
            files.unlink(os.path.join(path, name))
    with suppress(FileNotFoundError):
        files.rmdir(path)


def reason(error: OSError) -> str:
    """The system's text for an error, in lower case as Go writes it."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def _check_writable(path: str) -> None:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DataPathError(f"cannot write to data-path: {path} is not ours to write to")


def remove_topic_folder(files: Files, path: str) -> None:
    """Delete a topic's folder as a whole: after a crash, ``remove_leftovers`` deletes the rest. Raises ``OSError``."""
    doomed = leftover_name(path, files.listdir(os.path.dirname(path)))
    with suppress(FileNotFoundError):
        files.rename(path, doomed)
        remove_folder(files, doomed)


def leftover_name(folder: str, taken: Iterable[str]) -> str:
    """The path to which a topic's folder is renamed before it is deleted; `taken` are the names that exist."""
    parent, name = os.path.split(folder)
    stem = name.removesuffix(TOPIC_SUFFIX)
    names = (f"{stem}.deleted-{number}" for number in itertools.count(1))
    occupied = frozenset(taken)
    return os.path.join(parent, next(candidate for candidate in names if candidate not in occupied))


def remove_leftovers(files: Files, folder: str) -> None:
    """Delete the remains of deleted topics in `folder`, the folder of all topics. Raises ``OSError``."""
    for name in files.listdir(folder):
        if _LEFTOVER.fullmatch(name):
            remove_folder(files, os.path.join(folder, name))
