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
_SOURCE: Final = "source"
_EXPIRES: Final = "expires"


class NoSpool(ValueError):
    """The DataFrame has no spool, or it does not exist here; the text says why."""


def metadata_of(options: Mapping[str, str], name: str) -> dict[str, str]:
    """The metadata of a read's columns; none without a spool. `options` are the user's, not validated yet."""
    given = {key.lower(): value.strip() for key, value in options.items()}
    root = given.get("spooldir", "")
    return {METADATA: str(Path(root) / f"{_PREFIX}{given.get('spoolname') or name}")} if root else {}


def check_schema(metadata: Iterable[Mapping[str, Any]], options: Mapping[str, str], name: str) -> None:
    """Raise ``OptionError`` if columns have the metadata of another read: `ack` would delete that read's spool."""
    own = metadata_of(options, name).get(METADATA)
    if any(each.get(METADATA, own) != own for each in metadata):
        raise OptionError(
            "schema: this is the schema of another read; give the columns as text, .schema('id string, ...')"
        )


def spool_of(options: ReadOptions, name: str) -> Spool:
    return Spool(options.spool_dir, _PREFIX + (options.spool_name or name))


def require_no_other(options: ReadOptions) -> None:
    """Raise ``OptionError`` if an earlier read of the same channel has messages and may not expire.

    Its job died, or it was never acknowledged: a new read would not get these messages, and nothing would tell.
    """
    if options.keep_spool is not None:
        return
    for mark in sorted(Path(options.spool_dir).glob(f"{_PREFIX}*/{_SOURCE}")):
        folder = mark.parent
        try:
            is_same = json.loads(mark.read_bytes()) == _source(options)
        except FileNotFoundError:  # another process has deleted it
            continue
        if is_same and saved_plan(Spool(folder.parent, folder.name)):
            name = folder.name.removeprefix(_PREFIX)
            raise OptionError(
                f"an earlier read of channel {options.channel} was not acknowledged, and its messages are in {folder}. "
                f"Set spoolName={name} to read them again, then call ack; or delete them with pyspark_nsq.spool_tool "
                f"purge {options.spool_dir} {folder.name}; or set keepSpool to milliseconds, after which such spools "
                "are deleted, to read on without them"
            )


def _source(options: ReadOptions) -> dict[str, Any]:
    return {"topics": sorted(options.topics), "channel": options.channel}


def save_plan(spool: Spool, shares: Sequence[Share], options: ReadOptions) -> None:
    """Save a read's plan, what it reads, and the time when its spool expires, in the spool."""
    write_atomically(spool.folder / _SOURCE, json.dumps(_source(options)).encode())
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
