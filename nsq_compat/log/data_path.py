"""The folder given as --data-path: who may use it, and where things lie in it.

    nsqd.dat                         in Go's form, see ``metadata``
    nsqd.dat.bad-<n>                 a copy of a damaged one, for the operator
    <queue>.diskqueue.*.dat          Go's messages, until they are imported: see ``go_import``
    nsq_compat/                      ours; Go looks at nothing in it
        <topic>.topic/               a topic's log and checkpoint
        <topic>.deleted-<n>/         what is left of a deleted topic, until it can be removed
        <topic>.importing/           a topic being built from Go's files
        <topic>.replaced/            what that topic was before, for a moment
        imported/<n>/                Go's files whose messages are ours now
    nsq_compat.exported-<n>/         was nsq_compat/ until Go's files were made of it: see ``go_export``

Like Go's, a daemon locks the folder itself, so that ours and Go's exclude each other.
"""

import errno
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from nsq_compat.log.files import Files

FOLDER: Final = "nsq_compat"
TOPIC_SUFFIX: Final = ".topic"
_LEFTOVER: Final = re.compile(r".+\.deleted-[0-9]+")


class DataPathError(Exception):
    """The data path cannot be used; the text is for the operator, behind "failed to instantiate nsqd - "."""


def resolved(data_path: str) -> str:
    """The data path itself; the current folder when the option is empty, as a path that survives a chdir."""
    return data_path or os.getcwd()


def our_folder(data_path: str) -> str:
    """Where everything of ours lies."""
    return os.path.join(data_path, FOLDER)


def topic_folder(data_path: str, topic: str) -> str:
    """Where a topic's log and checkpoint lie."""
    return os.path.join(data_path, FOLDER, topic + TOPIC_SUFFIX)


class DataPathLock:
    """The right to use a data path, from when this is made until `release` or the end of the process.

    Raises ``DataPathError`` with Go's texts when the folder is missing, no folder, not ours to read, or in use.
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
        """Let others have it. More than once is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "DataPathLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_folder(data_path: str) -> None:
    """Raises ``DataPathError`` for a data path nobody could use; takes no lock and makes nothing."""
    os.close(_opened(data_path))
    _require(_is_writable, data_path, "not ours to write to")
    if os.path.lexists(our_folder(data_path)):
        _require(_is_writable, our_folder(data_path), "not ours to write to")


def _opened(data_path: str) -> int:
    try:
        return os.open(data_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DataPathError(f"failed to lock data-path: open {data_path}: {reason(error)}") from None


def make_our_folder(files: Files, data_path: str) -> None:
    """Make ``nsq_compat`` in the data path unless it is there. Raises ``DataPathError`` with a sentence."""
    path = our_folder(data_path)
    try:
        files.mkdir(path, 0o700)
        files.fsync_folder(data_path)
    except FileExistsError:
        _require(os.path.isdir, path, "not a directory")
    except OSError as error:
        raise DataPathError(f"cannot write to data-path: mkdir {path}: {reason(error)}") from None
    _require(_is_writable, path, "not ours to write to")


def topics_in(files: Files, data_path: str) -> list[str]:
    """The topics that have a folder here, sorted."""
    try:
        names = files.listdir(our_folder(data_path))
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(TOPIC_SUFFIX) for name in names if name.endswith(TOPIC_SUFFIX))


def remove_folder(files: Files, path: str) -> None:
    """Remove a folder and the files in it, if it is there. Folders inside are not expected and make it fail."""
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
    """The system's word for an error, spelled as Go does."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def _is_writable(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK | os.X_OK)


def _require(holds: Callable[[str], bool], path: str, complaint: str) -> None:
    if not holds(path):
        raise DataPathError(f"cannot write to data-path: {path} is {complaint}")


def leftover_name(folder: str, taken: Iterable[str]) -> str:
    """Where a topic's folder is moved before it is deleted; `taken` are the names that are there already."""
    parent, name = os.path.split(folder)
    stem = name.removesuffix(TOPIC_SUFFIX)
    names = (f"{stem}.deleted-{number}" for number in itertools.count(1))
    occupied = frozenset(taken)
    return os.path.join(parent, next(candidate for candidate in names if candidate not in occupied))


def remove_leftovers(files: Files, folder: str) -> None:
    """Delete what is left of deleted topics in the folder of all topics. Raises ``OSError``."""
    for name in files.listdir(folder):
        if _LEFTOVER.fullmatch(name):
            remove_folder(files, os.path.join(folder, name))
