"""A reading task: move messages from one nsqd to the spool, finish them, and seal the partition.

nsqd limits the messages in flight on a connection, so the task works in chunks: receive a chunk, sync it to disk, then
send its FINs. At any time, a message is either in the spool or still unfinished at nsqd.

After a crash there may be spooled chunks with FINs that were not executed. The next attempt adopts these chunks,
records their ids as suspects, and drops the messages if nsqd delivers them again. `at` is called with the name of each
point that is reached, in order; tests use it to crash the task there.
"""

import logging
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from nsq_compat.protocol import command_writer
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.connection import NsqConnection, NsqdLost, NsqdUnreachable, http_access
from pyspark_nsq.decode import InvalidMessage, decode, finish
from pyspark_nsq.nodes import HttpFailed, ask
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.rows import Origin, spooled
from pyspark_nsq.spool import Partition, Piece, Spool, ids_in
from pyspark_nsq.spool_file import SpoolFile

log = logging.getLogger(__name__)

_FIRST = pa.scalar(1, pa.int32())
_MAX_CHUNK_WAIT = 1.0
_MAX_CHUNK_BYTES = 64 << 20
# Executors may be unable to reach an address that the driver reaches; that must not delay the task.
_INFO_TIMEOUT = 1.0

BEFORE_SPOOL = "before spool"
SPOOLED = "spooled"
FINISHED = "finished"
BEFORE_SEAL = "before seal"
SEALED = "sealed"
POINTS = (BEFORE_SPOOL, SPOOLED, FINISHED, BEFORE_SEAL, SEALED)


def ignore_point(_: str) -> None:
    """Ignore the points that a task reaches."""


def drain(
    spool: Spool,
    partition: Partition,
    origin: Origin,
    count: int,
    options: ReadOptions,
    at: Callable[[str], None] = ignore_point,
    http: str = "",
) -> list[Piece]:
    """Read at most `count` messages of `origin`, seal the partition, and return its content.

    If the partition is sealed already, its content is returned. `http` is nsqd's HTTP address, for its start time.
    """
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
            log.warning("the partition stays empty: %s", error)
    if missing := left - sum(each.rows for each in mine):
        # They were taken by another consumer, or wait at nsqd for the next batch.
        log.warning("%d of %d messages of %s at nsqd %s did not arrive", missing, count, origin.topic, origin.nsqd)
    at(BEFORE_SEAL)
    sealed = partition.seal([*adopted, *mine])
    at(SEALED)
    return sealed


def _suspects(spool: Spool, origin: Origin, http: str, options: ReadOptions) -> set[str]:
    """The ids that this nsqd may deliver again. Called while connected, so that a later restart ends the connection."""
    if http:
        try:
            spool.suspect_all_before_restart(
                origin, int(ask(http, "info", _INFO_TIMEOUT, http_access(options))["start_time"])
            )
        except (HttpFailed, TypeError, KeyError, ValueError, OverflowError) as error:
            log.warning("cannot find out whether nsqd %s was restarted: %r", origin.nsqd, error)
    return spool.suspected(origin)


class _Attempt:
    """The transfer of messages from one connection to one file."""

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
        # A chunk must be finished well before its first messages time out.
        self._hold = min(_MAX_CHUNK_WAIT, connection.msg_timeout / 4)
        self._file: SpoolFile | None = None
        self._finished: list[pa.Array] = []

    def receive(self, wanted: int) -> list[Piece]:
        try:
            self._receive(wanted)
            self._connection.end_session()
            doubtful = self._connection.rejected
        except (NsqdLost, InvalidMessage) as error:
            # Spooled messages are kept, but it is unknown whether their FINs were executed.
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
            if waiting and (self._is_full(waiting, wanted) or now >= min(end, quiet, held)):
                wanted -= self._spool_and_finish(decode(waiting), wanted)
                waiting = []

    def _is_full(self, waiting: list[ReceivedFrames], wanted: int) -> bool:
        rows = sum(len(each.starts) - 1 for each in waiting)
        size = sum(each.starts[-1] - each.starts[0] for each in waiting)
        return rows >= min(self._chunk, wanted) or size >= _MAX_CHUNK_BYTES

    def _spool_and_finish(self, batch: pa.RecordBatch, wanted: int) -> int:
        """Return the number of messages that were not in the spool before."""
        fresh = self._without_known(batch)
        self._at(BEFORE_SPOOL)
        if fresh.num_rows:
            if self._file is None:
                self._file = self._partition.new_file()
            self._file.append(spooled(self._origin, fresh))
        self._at(SPOOLED)
        self._note(fresh.column("id"))
        # RDY before the FINs: otherwise nsqd uses the old RDY count for the slots that the FINs free.
        ready = command_writer.ready(max(0, min(self._in_flight, wanted - fresh.num_rows)))
        self._connection.send(ready + finish(batch.column("id")))
        self._at(FINISHED)
        return int(fresh.num_rows)

    def _without_known(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drop messages that are in the spool already; nsqd redelivers messages that timed out."""
        if not self._options.suppress_redelivered:
            return batch
        # A connection gets a message twice only with attempts > 1.
        if self._known is None and not pc.all(pc.equal(batch.column("attempts"), _FIRST)).as_py():
            self._known = self._suspects | self._ids()
        if self._known is None and not self._suspects:
            return batch
        ids = batch.column("id").to_pylist()
        if self._known is None and self._suspects.isdisjoint(ids):
            return batch
        known = self._suspects if self._known is None else self._known
        rows = {id: row for row, id in enumerate(ids) if id not in known}
        return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows.values(), pa.int32()))

    def _note(self, ids: pa.Array) -> None:
        self._finished.append(ids)
        if self._known is not None:
            self._known.update(ids.to_pylist())

    def _ids(self) -> set[str]:
        """The ids of all messages that this attempt has finished."""
        return {id for ids in self._finished for id in ids.to_pylist()}
