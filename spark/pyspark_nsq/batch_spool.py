"""The spools of batch reads. Spark does not report the end of a batch read, so a spool is deleted by `ack` or expires.

The columns of a DataFrame have the folder of its spool as metadata, where `ack` finds it. Deleting uses the spool's own
cleaning: messages that an attempt spooled outside the sealed part do not belong to the DataFrame, and are kept.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark_nsq.options import OptionError, ReadOptions
from pyspark_nsq.plan import Share, from_json, to_json
from pyspark_nsq.spool import Spool
from pyspark_nsq.spool_file import write_atomically

log = logging.getLogger(__name__)

METADATA: Final = "nsq.spool"
"""The key in a column's metadata with the spool's folder."""

_PREFIX: Final = "batch-"
_PLAN: Final = "plan"
_EXPIRES: Final = "expires"


class NoSpool(ValueError):
    """The DataFrame has no spool, or it does not exist here; the text says why."""


def metadata_of(options: Mapping[str, str], name: str) -> dict[str, str]:
    """The metadata of a read's columns; none without a spool. `options` are the user's, not validated yet."""
    root = next((value for key, value in options.items() if key.lower() == "spooldir"), "")
    return {METADATA: str(Path(root) / f"{_PREFIX}{name}")} if root else {}


def check_schema(metadata: Iterable[Mapping[str, Any]], options: Mapping[str, str], name: str) -> None:
    """Raise ``OptionError`` if columns have the metadata of another read: `ack` would delete that read's spool."""
    own = metadata_of(options, name).get(METADATA)
    if any(each.get(METADATA, own) != own for each in metadata):
        raise OptionError(
            "schema: this is the schema of another read; give the columns as text, .schema('id string, ...')"
        )


def spool_of(options: ReadOptions, name: str) -> Spool:
    return Spool(options.spool_dir, _PREFIX + name)


def save_plan(spool: Spool, shares: Sequence[Share], options: ReadOptions) -> None:
    """Save a read's plan, and the time when its spool expires, in the spool."""
    if options.keep_spool is not None:
        write_atomically(spool.folder / _EXPIRES, str(time.time() + options.keep_spool).encode())
    write_atomically(spool.folder / _PLAN, json.dumps(to_json(shares)).encode())


def saved_plan(spool: Spool) -> list[Share] | None:
    """Load the plan; None if it is not saved yet. Spark may plan one DataFrame several times."""
    try:
        plan = from_json(json.loads((spool.folder / _PLAN).read_bytes()))
    except FileNotFoundError:
        return None
    return [each for each in plan if isinstance(each, Share)]


def acknowledge(metadata: Iterable[Mapping[str, Any]]) -> int:
    """Delete the spools of columns with this metadata, and return the number of messages. Raises ``NoSpool``."""
    folders = sorted({Path(each[METADATA]) for each in metadata if METADATA in each})
    if not folders:
        raise NoSpool(
            "ack: no column of this DataFrame has the metadata of a spool. Pass a DataFrame that was loaded with "
            'format("nsq") and without .schema(...), or one with some of its columns.'
        )
    for folder in folders:
        if not folder.is_dir():
            raise NoSpool(
                f"ack: there is no {folder}. Either it was acknowledged before, or it has expired (keepSpool), or "
                "no action has read the DataFrame yet, or this machine does not mount the folder."
            )
    return sum(map(_delete, folders))


def expire(root: str) -> None:
    """Delete expired spools."""
    for mark in sorted(Path(root).glob(f"{_PREFIX}*/{_EXPIRES}")):
        try:
            if float(mark.read_text()) < time.time():
                messages = _delete(mark.parent)
                log.warning("keepSpool: %s was not acknowledged; %d messages deleted", mark.parent, messages)
        except FileNotFoundError:  # another process has deleted it
            continue


def _delete(folder: Path) -> int:
    spool = Spool(folder.parent, folder.name)
    messages = sum(
        piece.rows for seq in spool.batches() for each in spool.partitions(seq) for piece in each.sealed() or ()
    )
    spool.clean(0)
    left = spool.count_orphans()
    if left:
        # These messages are finished at nsqd and in no DataFrame: this is the only copy.
        (folder / _EXPIRES).unlink(missing_ok=True)
        log.warning("%d messages in %s belong to no batch: requeue them with pyspark_nsq.spool_tool", left, folder)
    else:
        shutil.rmtree(folder)
    return messages
