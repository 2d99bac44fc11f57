"""What a task does: take messages from one nsqd into the spool, finish them, and seal.

Messages are taken by the chunk, because nsqd lets a connection have only so many unfinished ones: receive a chunk, put
it on the disk, then FIN it. Whatever happens in between, a message is either in the spool or still nsqd's.

A crash leaves chunks whose FIN may not have been executed. The next attempt adopts them, notes their ids as suspects,
and drops them when they come again. `at` is called with the name of each point, in order: tests die there.
"""

import logging
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from nsq_compat.protocol import command_writer
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.connection import NsqConnection, NsqdLost, NsqdUnreachable
from pyspark_nsq.decode import NotText, decode, finish
from pyspark_nsq.nodes import HttpFailed, ask
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.rows import Origin, spooled
from pyspark_nsq.spool import Partition, Piece, Spool, ids_in
from pyspark_nsq.spool_file import SpoolFile

log = logging.getLogger(__name__)

_FIRST = pa.scalar(1, pa.int32())
_LONGEST_HOLD = 1.0
_LARGEST_CHUNK = 64 << 20
# Executors may not reach what the driver does, and a task should not be late for it.
_LONGEST_QUESTION = 1.0

BEFORE_SPOOL = "before spool"
SPOOLED = "spooled"
FINISHED = "finished"
BEFORE_SEAL = "before seal"
SEALED = "sealed"
POINTS = (BEFORE_SPOOL, SPOOLED, FINISHED, BEFORE_SEAL, SEALED)


def nowhere(_: str) -> None:
    """Nobody wants to know how far a task is."""


def drain(
    spool: Spool,
    partition: Partition,
    origin: Origin,
    count: int,
    options: ReadOptions,
    at: Callable[[str], None] = nowhere,
    http: str = "",
) -> list[Piece]:
    """At most `count` messages of `origin`, sealed. An attempt at a sealed partition gets what was sealed. `http` is
    where nsqd can be asked when it was started."""
    sealed = partition.sealed()
    if sealed is not None:
        return sealed
    partition.create()
    adopted = partition.pieces()
    for where, ids in ids_in(spool.folder, adopted).items():
        spool.suspects.add(where, ids)
    left = count - sum(each.rows for each in adopted)
    mine: list[Piece] = []
    if left > 0:
        try:
            with NsqConnection(origin.nsqd, options) as connection:
                connection.subscribe(origin.topic, origin.channel)
                suspects = _suspects(spool, origin, http, options) if options.suppress_redelivered else set()
                mine = _Attempt(connection, spool, partition, origin, suspects, options, at).receive(left)
        except NsqdUnreachable as error:
            if options.fail_on_unreachable:
                raise
            log.warning("an empty partition: %s", error)
    at(BEFORE_SEAL)
    sealed = partition.seal([*adopted, *mine])
    at(SEALED)
    return sealed


def _suspects(spool: Spool, origin: Origin, http: str, options: ReadOptions) -> set[str]:
    """What may come again from this nsqd, to which there is a connection: it is not started again unnoticed."""
    if http:
        try:
            spool.suspect_from_before(origin, int(ask(http, "info", _LONGEST_QUESTION)["start_time"]))
        except (HttpFailed, TypeError, KeyError, ValueError) as error:
            log.warning("whether nsqd %s was started again is not known: %r", origin.nsqd, error)
    return spool.suspects.of(origin)


class _Attempt:
    """One connection's worth of messages on their way into one file."""

    def __init__(
        self,
        connection: NsqConnection,
        spool: Spool,
        partition: Partition,
        origin: Origin,
        suspects: set[str],
        options: ReadOptions,
        at: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._spool = spool
        self._partition = partition
        self._origin = origin
        self._suspects = suspects
        self._known: set[str] | None = None
        self._options = options
        self._at = at
        self._in_flight = min(options.max_in_flight or connection.max_rdy_count, connection.max_rdy_count)
        self._chunk = min(options.chunk_messages or max(1, self._in_flight // 2), self._in_flight)
        # No chunk is gathered for so long that nsqd would give its first messages to somebody else.
        self._hold = min(_LONGEST_HOLD, connection.msg_timeout / 4)
        self._file: SpoolFile | None = None
        self._finished: list[pa.Array] = []

    def receive(self, wanted: int) -> list[Piece]:
        try:
            self._receive(wanted)
            self._connection.settle()
            doubtful = self._connection.rejected
        except (NsqdLost, NotText) as error:
            # What is spooled is kept; whether it was finished, nobody knows.
            log.warning("reading ends early: %s", error)
            doubtful = self._ids()
        finally:
            if self._file is not None:
                self._file.close()
        self._spool.suspects.add(self._origin, doubtful)
        if self._file is None or not self._file.rows:
            return []
        return [Piece(str(self._file.path.relative_to(self._spool.folder)), self._file.size, self._file.rows)]

    def _receive(self, wanted: int) -> None:
        self._connection.send(command_writer.ready(min(self._in_flight, wanted)))
        waiting: list[ReceivedFrames] = []
        now = time.monotonic()
        end, quiet, held = now + self._options.max_read, now + self._options.idle_timeout, 0.0
        while wanted > 0 and now < min(end, quiet) and not self._partition.is_sealed:
            blocks = self._connection.receive(min(end, quiet, held if waiting else quiet) - now)
            now = time.monotonic()
            if blocks:
                quiet = now + self._options.idle_timeout
                held = held if waiting else now + self._hold
                waiting += blocks
            if waiting and (self._is_chunk(waiting, wanted) or now >= min(end, quiet, held)):
                wanted -= self._take(decode(waiting), wanted)
                waiting = []

    def _is_chunk(self, waiting: list[ReceivedFrames], wanted: int) -> bool:
        rows = sum(len(each.starts) - 1 for each in waiting)
        size = sum(each.starts[-1] - each.starts[0] for each in waiting)
        return rows >= min(self._chunk, wanted) or size >= _LARGEST_CHUNK

    def _take(self, batch: pa.RecordBatch, wanted: int) -> int:
        """Spool and finish them; how many of them are new."""
        fresh = self._fresh(batch)
        self._at(BEFORE_SPOOL)
        if fresh.num_rows:
            if self._file is None:
                self._file = self._partition.new_file()
            self._file.append(spooled(self._origin, fresh))
        self._at(SPOOLED)
        self._note(fresh.column("id"))
        # RDY first: nsqd would fill up at once what the FINs make room for.
        ready = command_writer.ready(max(0, min(self._in_flight, wanted - fresh.num_rows)))
        self._connection.send(ready + finish(batch.column("id")))
        self._at(FINISHED)
        return int(fresh.num_rows)

    def _fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those that are not in the spool yet; nsqd sends again what it waited for too long."""
        if not self._options.suppress_redelivered:
            return batch
        # One connection gets a message for the second time only as its second attempt.
        if self._known is None and not pc.all(pc.equal(batch.column("attempts"), _FIRST)).as_py():
            self._known = self._suspects | self._ids()
        if self._known is None and not self._suspects:
            return batch
        ids = batch.column("id").to_pylist()
        if self._known is None and self._suspects.isdisjoint(ids):
            return batch
        known = self._suspects if self._known is None else self._known
        numbers = {id: number for number, id in enumerate(ids) if id not in known}
        return batch if len(numbers) == batch.num_rows else batch.take(pa.array(numbers.values(), pa.int32()))

    def _note(self, ids: pa.Array) -> None:
        self._finished.append(ids)
        if self._known is not None:
            self._known.update(ids.to_pylist())

    def _ids(self) -> set[str]:
        """Of everything this attempt has spooled."""
        return {id for ids in self._finished for id in ids.to_pylist()}
