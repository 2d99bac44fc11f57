"""Inspect a spool and publish its messages again: ``python -m pyspark_nsq.spool_tool list /shared/nsq-spool``.

If a checkpoint is lost, the spool has the only copy of messages that were received and not yet written. Only `purge`
changes the spool. `requeue` publishes its content as new messages and leaves the spool as it is.
"""

import argparse
import base64
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from nsq_compat.protocol.layout import sized
from pyspark_nsq.nodes import HttpFailed, post
from pyspark_nsq.rows import HEADERS, origin_of
from pyspark_nsq.spool import Spool
from pyspark_nsq.spool_file import SpoolError

_TIMEOUT = 30.0
_MAX_MPUB_BYTES = 1 << 20


class ToolError(Exception):
    """The command cannot be executed; the text is for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except (ToolError, SpoolError, HttpFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spool_tool", description="Inspect a spool of pyspark_nsq.")
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("list", help="list streams with their batches, messages and orphans")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="print the messages of a stream, one JSON object per line")
    show.set_defaults(run=_show)
    requeue = commands.add_parser("requeue", help="publish the messages of a stream to their topics again")
    requeue.add_argument("--nsqd-http-address", required=True, help="the nsqd to publish to")
    requeue.set_defaults(run=_requeue)
    purge = commands.add_parser("purge", help="delete a stream and its messages")
    purge.set_defaults(run=_purge)
    for each in (listing, show, requeue, purge):
        each.add_argument("spool", type=Path, help="the folder given as spoolDir")
        if each is not listing:
            each.add_argument("stream", help="the name of a stream, as printed by `list`")
    for each in (show, requeue):
        each.add_argument(
            "--after", type=int, default=-2, metavar="BATCH", help="only batches after this one, by Spark's number"
        )
    return parser


def _list(given: argparse.Namespace) -> None:
    if not given.spool.is_dir():
        raise ToolError(f"there is no folder {given.spool}")
    for folder in sorted(given.spool.iterdir()):
        if (folder / "orphans").is_dir():
            spool = Spool(given.spool, folder.name)
            seqs = spool.batches()
            # Spark counts batches from 0. The spool of a batch read has one, with the number 0.
            batches = f"batches {seqs[0] - 1} to {seqs[-1] - 1}" if seqs and seqs[0] else f"{len(seqs) or 'no'} batches"
            rows = sum(batch.num_rows for batch in _batches(spool, -1))
            orphans = spool.count_orphans()
            print(f"{folder.name}: {batches}, {rows} messages, of which {orphans} belong to no batch yet")


def _show(given: argparse.Namespace) -> None:
    for batch in _batches(_opened(given), given.after):
        origin = origin_of(batch)
        for row in batch.to_pylist():
            place = {"nsqd": origin.nsqd, "topic": origin.topic, "channel": origin.channel}
            headers = {HEADERS: dict(row[HEADERS] or ())} if HEADERS in row else {}
            print(json.dumps(place | row | {"body": base64.b64encode(row["body"]).decode()} | headers))


def _requeue(given: argparse.Namespace) -> None:
    published = 0
    for batch in _batches(_opened(given), given.after):
        topic = origin_of(batch).topic
        for bodies in _packets(batch.column("body").to_pylist()):
            body = len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))
            post(given.nsqd_http_address, "mpub", _TIMEOUT, body, topic=topic, binary="true")
            published += len(bodies)
    print(f"published {published} messages; the spool still contains them: purge it when it is no longer needed")


def _purge(given: argparse.Namespace) -> None:
    shutil.rmtree(_opened(given).folder)


def _opened(given: argparse.Namespace) -> Spool:
    if not (given.spool / given.stream / "orphans").is_dir():
        raise ToolError(f"there is no stream {given.stream} in {given.spool}; the command list shows all streams")
    return Spool(given.spool, given.stream)


def _batches(spool: Spool, after: int) -> Iterator[pa.RecordBatch]:
    """Yield the content of sealed partitions, all chunks of unsealed ones, and orphans."""
    for seq in spool.batches():
        if seq - 1 > after:
            for partition in spool.partitions(seq):
                sealed = partition.sealed()
                yield from partition.read(partition.pieces() if sealed is None else sealed)
    for orphan in spool.orphans():
        yield from spool.read_orphan(orphan)


def _packets(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    packet: list[bytes] = []
    size = 0
    for body in bodies:
        if packet and size + len(body) > _MAX_MPUB_BYTES:
            yield packet
            packet, size = [], 0
        packet.append(body)
        size += len(body) + 4
    if packet:
        yield packet


if __name__ == "__main__":
    sys.exit(main())
