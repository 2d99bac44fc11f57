"""A deleted topic's folder: out of the way at once under a name of its own, its files deleted as soon as may be."""

import itertools
import os
import re
from collections.abc import Iterable
from typing import Final

from nsq_compat.queue.data_path import TOPIC_SUFFIX, remove_folder
from nsq_compat.queue.files import Files

_LEFTOVER: Final = re.compile(r".+\.deleted-[0-9]+")


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
