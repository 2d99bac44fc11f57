"""Looks into a spool, and puts back what is in it: ``python -m pyspark_nsq.spool_tool list /shared/nsq-spool``.

For whoever lost a checkpoint: the spool is then the only copy of what was received and not yet written. Nothing here
changes anything but `purge`; `requeue` publishes again, as new messages, and leaves the spool as it is.
"""

import argparse
import base64
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from nsq_compat.protocol import command_writer
from pyspark_nsq.nodes import HttpFailed, post
from pyspark_nsq.rows import origin_of
from pyspark_nsq.spool import Spool
from pyspark_nsq.spool_file import SpoolError

_TIMEOUT = 30.0
_MOST_BYTES = 1 << 20


class Complaint(Exception):
    """What cannot be done; the text is for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except (Complaint, SpoolError, HttpFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spool_tool", description="What is in a spool of pyspark_nsq.")
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("list", help="every stream: batches, messages, orphans")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="the messages of a stream, a line of JSON each")
    show.set_defaults(run=_show)
    requeue = commands.add_parser("requeue", help="publish the messages of a stream again, to their topics")
    requeue.add_argument("--nsqd-http-address", required=True, help="the nsqd to publish to")
    requeue.set_defaults(run=_requeue)
    purge = commands.add_parser("purge", help="delete a stream, with whatever is in it")
    purge.set_defaults(run=_purge)
    for each in (listing, show, requeue, purge):
        each.add_argument("spool", type=Path, help="the folder that is spoolDir")
        if each is not listing:
            each.add_argument("stream", help="the name of a folder in it, as `list` says it")
    for each in (show, requeue):
        each.add_argument("--after", type=int, default=-1, metavar="BATCH", help="only batches behind this number")
    return parser


def _list(given: argparse.Namespace) -> None:
    if not given.spool.is_dir():
        raise Complaint(f"there is no folder {given.spool}")
    for folder in sorted(given.spool.iterdir()):
        if (folder / "orphans").is_dir():
            spool = Spool(given.spool, folder.name)
            seqs = spool.batches()
            batches = f"batches {seqs[0]} to {seqs[-1]}" if seqs else "no batches"
            rows = sum(batch.num_rows for batch in _batches(spool, -1))
            orphans = sum(piece.rows for piece in spool.orphans())
            print(f"{folder.name}: {batches}, {rows} messages, of which {orphans} belong to no batch yet")


def _show(given: argparse.Namespace) -> None:
    for batch in _batches(_opened(given), given.after):
        origin = origin_of(batch)
        for row in batch.to_pylist():
            place = {"nsqd": origin.nsqd, "topic": origin.topic, "channel": origin.channel}
            print(json.dumps(place | row | {"body": base64.b64encode(row["body"]).decode()}))


def _requeue(given: argparse.Namespace) -> None:
    published = 0
    for batch in _batches(_opened(given), given.after):
        topic = origin_of(batch).topic
        for bodies in _packets(batch.column("body").to_pylist()):
            body = len(bodies).to_bytes(4, "big") + b"".join(map(command_writer.sized, bodies))
            post(given.nsqd_http_address, "mpub", _TIMEOUT, body, topic=topic, binary="true")
            published += len(bodies)
    print(f"published {published} messages; the spool still has them: purge it when it is no longer needed")


def _purge(given: argparse.Namespace) -> None:
    shutil.rmtree(_opened(given).folder)


def _opened(given: argparse.Namespace) -> Spool:
    if not (given.spool / given.stream / "orphans").is_dir():
        raise Complaint(f"there is no stream {given.stream} in {given.spool}; list shows which there are")
    return Spool(given.spool, given.stream)


def _batches(spool: Spool, after: int) -> Iterator[pa.RecordBatch]:
    """What is sealed, or was spooled in a partition that is not sealed, and what belongs to no batch."""
    for seq in spool.batches():
        if seq > after:
            for partition in spool.partitions(seq):
                sealed = partition.sealed()
                yield from partition.read(partition.pieces() if sealed is None else sealed)
    yield from spool.partition(0, 0).read(spool.orphans())


def _packets(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    packet: list[bytes] = []
    size = 0
    for body in bodies:
        if packet and size + len(body) > _MOST_BYTES:
            yield packet
            packet, size = [], 0
        packet.append(body)
        size += len(body) + 4
    if packet:
        yield packet


if __name__ == "__main__":
    sys.exit(main())
