"""The name of a data path in mirroring, and what tells whether a start found less than an earlier run had written."""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import Files, read_file, replace_file
from nsq_compat.log.reserve import Reserve

_FILE: Final = "identity"
_RESERVE: Final = "identity.reserve"
_RESERVE_SIZE: Final = 1 << 20
"""Bytes, enough for the ends of about 10,000 topics with names of 36 characters."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
UNKNOWN_SALT: Final = -1


class FileEnd(NamedTuple):
    """Where the groups of a log file end. The salt tells it from a file of another topic of the same name."""

    number: int
    end: int
    salt: int


class FoundEnd(NamedTuple):
    """The end of a topic's log at a start: the next offset, the one after the last message that is there, and files."""

    next_offset: int
    after_messages: int
    files: Sequence[FileEnd]


@dataclass
class Identity:
    """A random identity, an epoch that grows with each start, and a random `run` of each start.

    `known_as` has, by the identity of a standby, the last run of this nsqd that has compared its data with the copy.
    `forgotten` has, by the identity of a standby, its last take-over of which this nsqd has forgotten the messages.
    `ends` has, by topic, what a start has found, until it is compared with what the standby has. `may_lack_files`: the
    machine has started since nsqd ran before, so files that were not synced may be missing.
    """

    identity: str = ""
    epoch: int = 0
    forgotten: dict[str, str] = field(default_factory=dict)
    boot: str = ""
    run: str = ""
    known_as: dict[str, str] = field(default_factory=dict)
    may_lack_files: bool = False
    ends: dict[str, FoundEnd] | None = None

    def save(self, files: Files, data_path: str) -> None:
        """Raises ``OSError``.

        On a full disk there is a reserve for it: an nsqd that could not write that a new run begins could not start.
        """
        folder, data = our_folder(data_path), json.dumps(asdict(self)).encode("utf-8")
        reserve = Reserve(files, os.path.join(folder, _RESERVE), _RESERVE_SIZE)
        try:
            replace_file(files, os.path.join(folder, _FILE), data, sync=True)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with suppress(OSError):
                reserve.give_up()
            replace_file(files, os.path.join(folder, _FILE), data, sync=True)
        with suppress(OSError):  # this was saved, and may have used it
            reserve.take()

    def topics_behind(self, theirs: Mapping[str, Sequence[int]]) -> dict[str, FoundEnd]:
        """The topics of which the standby has more than a start has found. `theirs`: its last files' ends."""
        ours = {topic: (self.ends or {}).get(topic, FoundEnd(0, 0, ())) for topic in theirs}
        return {
            topic: ours[topic]
            for topic, last in theirs.items()
            if _is_behind(ours[topic].files, FileEnd(*last), self.may_lack_files)
        }


def _is_behind(ours: Sequence[FileEnd], last: FileEnd, may_lack_files: bool) -> bool:
    if not ours or ours[-1].number < last.number:
        return may_lack_files  # else the topic was deleted, and perhaps created again
    return any(
        each.number == last.number
        and each.end < last.end
        and (each.salt == last.salt or UNKNOWN_SALT in (each.salt, last.salt))
        for each in ours
    )


def begin_epoch(files: Files, data_path: str) -> Identity:
    """The identity of a data path, in a new epoch. Raises ``OSError``, and ``ValueError`` if its file is damaged."""
    try:
        values = json.loads(read_file(files, os.path.join(our_folder(data_path), _FILE)))
        all_ends = values.pop("ends", None)
        found = Identity(**values)
        for name, default in asdict(Identity()).items():
            if name != "ends" and type(getattr(found, name)) is not type(default):
                raise TypeError(f"{name} is {getattr(found, name)!r}")
        if all_ends is not None:
            found.ends = {
                topic: FoundEnd(offset, after, [FileEnd(*each) for each in ends])
                for topic, (offset, after, ends) in all_ends.items()
            }
    except FileNotFoundError:
        found = Identity(os.urandom(16).hex())
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    found.epoch += 1
    found.run = os.urandom(8).hex()
    boot = _boot_id()
    found.may_lack_files |= found.boot not in ("", boot)
    found.boot = boot
    found.save(files, data_path)
    return found


def _boot_id() -> str:
    """A random id that each start of the machine has, "" if the system has none."""
    with suppress(OSError), open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
    return ""
