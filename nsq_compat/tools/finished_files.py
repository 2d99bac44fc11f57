"""Files of nsq_to_file that nobody writes to any more: from the work directory into the output directory, where nothing
is ever overwritten, and what a killed process left behind is made whole first.
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Final

from nsq_compat.tools.file_names import FileNames, Name, Recognized
from nsq_compat.tools.output_file import cut_unfinished_member, lock, make_folder, sync_folder

log = logging.getLogger(__name__)

_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
_COPYING: Final = ".moving"


def put_in_place(source: str, folder: str, name: Name, revision: int) -> str:
    """Move a file to its name below `folder`, with this revision or the next that is free; returns its path.

    It is there as a whole or not at all. Raises ``OSError``.
    """
    for number in count(revision):
        target = os.path.join(folder, name.with_revision(number))
        make_folder(os.path.dirname(target))
        try:
            _move(source, target)
        except FileExistsError:
            log.warning("destination file already exists: %s", target)
            continue
        if number == revision:
            log.info("moved finished file %s to %s", source, target)
        else:
            log.info("renamed finished file %s to %s to avoid overwrite", source, target)
        return target
    raise AssertionError("numbers do not end")


def _move(source: str, target: str) -> None:
    """Raises ``FileExistsError``. In a crash it is in one of the two places, or in both."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(source, target)
    sync_folder(os.path.dirname(target))
    os.unlink(source)


def _copy(source: str, target: str) -> None:
    """To another file system, or to one that cannot link."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # the name is ours
    copy = target + _COPYING
    try:
        with open(source, "rb") as old, open(copy, "wb") as new:
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())
        os.rename(copy, target)
    except OSError:
        for each in (copy, target):
            with suppress(OSError):
                os.unlink(each)
        raise


def recover(work_dir: str, output_dir: str, names: FileNames, wants: Callable[[str], bool]) -> None:
    """Put what dead processes left in the work directory in place. `wants` says which topics are ours."""
    for path in sorted(_files_below(work_dir)):
        recognized = names.recognize(os.path.relpath(path, work_dir))
        if recognized is None or not wants(recognized.topic):
            continue
        try:
            _recover_one(path, output_dir, recognized)
        except OSError as error:  # it stays where it is; what comes now must be written all the same
            log.error("cannot put %s in place: %s", path, error)


def make_whole(path: str) -> bool:
    """What a dead process left of a gzip file becomes one that opens; False if its process lives, or it is damaged."""
    fd = os.open(path, os.O_RDWR)
    try:
        return lock(fd) and cut_unfinished_member(fd)
    finally:
        os.close(fd)


def _recover_one(path: str, output_dir: str, found: Recognized) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        if not lock(fd):
            return
        if found.name.is_gzip and not cut_unfinished_member(fd):
            log.warning("%s is damaged; it is put in place as it is", path)
        if os.fstat(fd).st_size == 0:
            os.unlink(path)
            return
        log.info("%s was left behind by a process that is gone", path)
        put_in_place(path, output_dir, found.name, found.revision)
    finally:
        os.close(fd)


def _files_below(folder: str) -> Iterator[str]:
    for parent, _, files in os.walk(folder):
        for each in files:
            yield os.path.join(parent, each)
