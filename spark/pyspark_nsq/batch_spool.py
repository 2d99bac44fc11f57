"""The spools of batch reads. Spark never says when it is done with a batch, so the user does, or time does.

A DataFrame's columns carry the folder of its spool as metadata: `ack` finds it there. Both ways of deleting are the
spool's own cleaning: what an attempt left behind its seal is no part of the DataFrame, stays, and is counted.
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
from pyspark_nsq.spool_file import write_whole

log = logging.getLogger(__name__)

METADATA: Final = "nsq.spool"
"""In a column's metadata: the folder."""

_PREFIX: Final = "batch-"
_PLAN: Final = "plan"
_EXPIRES: Final = "expires"


class NothingToAck(ValueError):
    """There is no spool to be seen; the text says why."""


def metadata_of(options: Mapping[str, str], name: str) -> dict[str, str]:
    """The metadata of a read's columns; `options` are as the user wrote them, and not checked yet."""
    root = next((value for key, value in options.items() if key.lower() == "spooldir"), "")
    return {METADATA: str(Path(root) / f"{_PREFIX}{name}")}


def check_schema(metadata: Iterable[Mapping[str, Any]], options: Mapping[str, str], name: str) -> None:
    """Raises ``OptionError`` for columns that say they come from another read: `ack` would delete that one's spool."""
    own = metadata_of(options, name)[METADATA]
    if any(each.get(METADATA, own) != own for each in metadata):
        raise OptionError(
            "schema: this is the schema of another read; write its columns out, .schema('id string, ...')"
        )


def spool_of(options: ReadOptions, name: str) -> Spool:
    return Spool(options.spool_dir, _PREFIX + name)


def begin(spool: Spool, shares: Sequence[Share], options: ReadOptions) -> None:
    """Note in a read's spool what is to be read into it, and until when it stays."""
    if options.keep_spool is not None:
        write_whole(spool.folder / _EXPIRES, str(time.time() + options.keep_spool).encode())
    write_whole(spool.folder / _PLAN, json.dumps(to_json(shares)).encode())


def begun(spool: Spool) -> list[Share] | None:
    """What `begin` noted; None if it was not called yet. Spark may plan one DataFrame several times."""
    try:
        plan = from_json(json.loads((spool.folder / _PLAN).read_bytes()))
    except FileNotFoundError:
        return None
    return [each for each in plan if isinstance(each, Share)]


def acknowledge(metadata: Iterable[Mapping[str, Any]]) -> int:
    """Delete the spools that columns with this metadata come from; how many messages were in them. Raises
    ``NothingToAck``."""
    folders = sorted({Path(each[METADATA]) for each in metadata if METADATA in each})
    if not folders:
        raise NothingToAck(
            'ack: no column of this DataFrame says which spool it comes from. It takes what format("nsq") has loaded '
            "without a .schema(...) of yours, or a DataFrame with some of its columns."
        )
    for folder in folders:
        if not folder.is_dir():
            raise NothingToAck(
                f"ack: there is no {folder}. Either it was acknowledged before, or its time was over (keepSpool), or "
                "no action has read the DataFrame yet, or this machine does not see the folder."
            )
    return sum(map(_delete, folders))


def expire(root: str) -> None:
    """Delete the spools whose time is over."""
    for mark in sorted(Path(root).glob(f"{_PREFIX}*/{_EXPIRES}")):
        try:
            if float(mark.read_text()) < time.time():
                messages = _delete(mark.parent)
                log.warning("keepSpool: %s was not acknowledged; %d messages deleted", mark.parent, messages)
        except FileNotFoundError:  # somebody else was quicker
            continue


def _delete(folder: Path) -> int:
    spool = Spool(folder.parent, folder.name)
    messages = sum(
        piece.rows for seq in spool.batches() for each in spool.partitions(seq) for piece in each.sealed() or ()
    )
    spool.clean(0)
    left = sum(piece.rows for piece in spool.orphans())
    if left:
        # Finished at nsqd and in no DataFrame: here is the only copy.
        (folder / _EXPIRES).unlink(missing_ok=True)
        log.warning("%d messages in %s belong to no batch: requeue them with pyspark_nsq.spool_tool", left, folder)
    else:
        shutil.rmtree(folder)
    return messages
