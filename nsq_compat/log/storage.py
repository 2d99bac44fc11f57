"""The logs and checkpoints of all topics: a folder for each topic, the durability level, and a reserve of disk space.

A ``TopicStore`` is a topic's view of its folder. It applies the durability level, so that the queue need not know it.
``Storage`` knows, for all topics, whether the disk works and the folder is where the next start looks for it.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from nsq_compat.log.checkpoint import CHECKPOINT, BadCheckpoint, TopicState, entry_id, read_checkpoint
from nsq_compat.log.data_path import our_folder, reason, remove_leftovers, topic_folder, topics_in
from nsq_compat.log.descriptors import DEFAULT_LIMIT, Descriptors
from nsq_compat.log.files import Files, adopt_temporary, replace_file, write_temporary
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.offsets import Retention, oldest, retained, retained_from
from nsq_compat.log.reserve import Reserve
from nsq_compat.log.segment import StagedBatch, locations_of
from nsq_compat.log.topic_log import Later, LogEnd, TopicLog
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import DEFERRED, MESSAGES

log = logging.getLogger(__name__)

T = TypeVar("T")
Done = Callable[[OSError | None], None]
"""Called when what was appended so far is durable, or with the reason why it may not be."""

_RESERVE: Final = "reserve"
_SPILL_AHEAD: Final = 8
"""At level ``memory``, spilling begins when this many times more messages wait than further deferred ones fit in."""
_ALL: Final = 1 << 62
_NS_PER_SECOND: Final = 1_000_000_000
_PROBE: Final = "probe"
_PROBE_SIZE: Final = 128 * 1024  # more than a log reserves for its next writes


class Durability(Enum):
    """The kind of failure that acknowledged messages survive."""

    MEMORY = "memory"
    """A clean stop. Only messages that memory has no room for are written."""
    OS = "os"
    """The end of the process, at any moment: messages are written before OK."""
    FSYNC = "fsync"
    """A power cut: messages are synced to disk before OK."""


def sync_at_once(log: TopicLog, done: Done) -> None:
    """Sync a log, which blocks."""
    try:
        log.sync()
    except OSError as error:
        done(error)
    else:
        done(None)


def expect_at_once(begin: Callable[[Done], None]) -> None:
    """Call `begin`, which calls its argument before it returns. Raises that error."""
    outcome: list[OSError | None] = []
    begin(outcome.append)
    if (error := outcome[0]) is not None:
        raise error


class Storage:
    """The folders of all topics of a data path, which exists. The constructor raises ``OSError``.

    `commit` syncs everything appended to a log. It is called after every append at level ``fsync``, and at all levels
    before messages are deleted that were copied. `confirm`, if given, is called before each OK, and calls its argument
    when a standby has everything that was written. `wait` calls one of them and blocks until it is done. `open_files`
    is the number of files that all logs together keep open. `later` schedules work that need not be done before an OK;
    `at_end_of_iteration` registers a callback for the end of the event-loop iteration. `clock_offset` returns seconds
    since 1970 minus monotonic seconds.
    """

    def __init__(
        self,
        files: Files,
        data_path: str,
        *,
        durability: Durability,
        segment_size: int,
        commit: Callable[[TopicLog, Done], None] = sync_at_once,
        confirm: Callable[[Done], None] | None = None,
        wait: Callable[[Callable[[Done], None]], None] = expect_at_once,
        open_files: int = DEFAULT_LIMIT,
        later: Later = lambda prepare: None,
        at_end_of_iteration: Later = lambda write: write(),
        clock_offset: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.files = files
        self.at_end_of_iteration = at_end_of_iteration
        self.clock_offset = clock_offset
        self.data_path = data_path
        self.durability = durability
        self.commit = commit
        self.confirm = confirm
        self.wait = wait
        self.error: str | None = None
        self.segment_size = segment_size
        self.reserve = Reserve(files, os.path.join(our_folder(data_path), _RESERVE))
        self._identity = files.identity(our_folder(data_path))
        self._lost_because = 0  # the error's number while the folder is not at its path
        self._descriptors = Descriptors(files, open_files)
        self._later = later

    def names(self) -> list[str]:
        """Return the names of all topics, sorted. Finishes interrupted deletions."""
        remove_leftovers(self.files, our_folder(self.data_path))
        if self.durability is Durability.FSYNC:
            self.files.fsync_folder(our_folder(self.data_path))  # an earlier run may have made them at another level
        return topics_in(self.files, self.data_path)

    def open(self, name: str) -> tuple["TopicStore", TopicState | None]:
        """Return a topic's store and its last checkpoint. Damage is logged and counted. Raises ``OSError``."""
        folder = topic_folder(self.data_path, name)
        last = None
        try:
            last = read_checkpoint(self.files, folder)
        except BadCheckpoint as error:
            path = os.path.join(folder, CHECKPOINT)
            log.error("checkpoint %s is damaged (%s): all messages in the log are delivered again", path, error)
        topic_log = TopicLog(
            self.files,
            folder,
            segment_size=self.segment_size,
            start=last.end if last is not None else None,
            descriptors=self._descriptors,
            later=self._later,
            migrates=True,
        )
        return TopicStore(self, folder, topic_log), last

    def adopt(self, name: str, topic_log: TopicLog) -> "TopicStore":
        """The store of a topic whose log was opened in another folder, which is renamed. Raises ``OSError``."""
        folder = topic_folder(self.data_path, name)
        topic_log.move(folder, self._descriptors, self._later)
        return TopicStore(self, folder, topic_log)

    def create(self, name: str) -> "TopicStore":
        """Return the store of a new topic. Raises ``OSError``."""
        self.check_folder()
        try:
            return self._create(name)
        except OSError as error:
            self.failed(error)
            raise

    def _create(self, name: str) -> "TopicStore":
        store, last = self.open(name)
        if last is not None or store.log.disk_bytes:
            store.delete()  # of a deleted topic: it could not be moved away at that time
            store, last = self.open(name)
            if last is not None or store.log.disk_bytes:
                store.log.close()
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        return store

    @property
    def problem(self) -> str | None:
        """Why the data path is not healthy: the last failed write, else a failed read; None if it is healthy."""
        return self.error or self._descriptors.read_faults.problem

    @property
    def read_errors(self) -> int:
        return self._descriptors.read_faults.count

    def check_folder(self) -> None:
        """Check that the folder of all topics is still at its path. Raises ``OSError`` if it is not.

        It may have been moved, deleted or unmounted. Logs that are open could still be written, but the next start
        would not find the messages. So nothing is written until the folder is back.
        """
        folder = our_folder(self.data_path)
        try:
            lost_because = 0 if self.files.identity(folder) == self._identity else errno.ESTALE
        except OSError as error:
            lost_because = error.errno or errno.EIO
        if lost_because == self._lost_because:
            self.refuse_if_lost()
            return
        self._lost_because = lost_because
        if not lost_because:
            self.probe()
            return
        self.reserve.lose()
        why = "another folder is at its path" if lost_because == errno.ESTALE else os.strerror(lost_because).lower()
        self.error = f"{folder} is gone: {why}"
        log.error("%s; nothing is written to the data path until the folder is back", self.error)
        self.refuse_if_lost()

    def refuse_if_lost(self) -> None:
        """Raises ``OSError`` if the folder was not at its path when that was checked last."""
        if self._lost_because:
            raise OSError(self._lost_because, os.strerror(self._lost_because))

    def probe(self) -> None:
        """Check whether a failed disk works again, because there may be no producer or reader that would notice."""
        try:
            self.check_folder()
        except OSError:
            return
        self._descriptors.read_faults.retry()
        if self.error is not None or not self.reserve.held:
            path = os.path.join(our_folder(self.data_path), _PROBE)
            try:
                self.reserve.take()
                replace_file(self.files, path, bytes(_PROBE_SIZE), sync=False)
                self.files.unlink(path)
            except OSError as error:
                self.failed(error)
            else:
                self.succeeded()

    def failed(self, error: OSError) -> None:
        """Note a failed write: the data path is not healthy until a write succeeds."""
        if self._lost_because:
            return
        if self.error is None:
            log.error("cannot write to the data path: %s", reason(error))
        self.error = reason(error)

    def succeeded(self) -> None:
        if self.error is not None:
            log.info("the data path can be written again")
            self.error = None


class TopicStore:
    """One topic's folder."""

    def __init__(self, storage: Storage, folder: str, topic_log: TopicLog) -> None:
        self.log = topic_log
        self._is_in_memory = storage.durability is Durability.MEMORY
        self.is_write_through = not self._is_in_memory
        """Whether messages are in a file before they are acknowledged."""
        self.retention: Retention | None = None
        self._is_flushed = self.is_deleted = False
        self._storage = storage
        self._checkpoint_path = os.path.join(folder, CHECKPOINT)
        self.syncs = storage.durability is Durability.FSYNC
        self.commits = self.syncs or storage.confirm is not None
        """Whether `commit` has to be called before an OK."""
        self.at_end_of_iteration = storage.at_end_of_iteration
        self.clock_offset = storage.clock_offset

    def serve(self, mem_queue_size: int, first_needed: Callable[[], int]) -> None:
        """Set the topic's limit, and read the log in steps from now on. `first_needed`: as for ``MemoryTail``."""
        self.log.in_steps = True
        if self._is_in_memory:
            self.log.tail = MemoryTail(mem_queue_size, first_needed)

    def append(
        self, frames: Sequence[bytes], first_seq: int, due_ns: int = 0, kind: int = MESSAGES, joined: bytes = b""
    ) -> None:
        """Add a group to the log, as ``TopicLog.append`` does. Raises ``OSError``, having added nothing.

        At level ``memory`` the messages are written later, if at all.
        """
        # Hot: runs for every publish; the test of `_keep_reserve` is repeated, which saves a call.
        if kind == MESSAGES and not self.is_write_through and self._hold(frames, first_seq):
            return
        try:
            if self._storage.reserve.given_up:
                self._keep_reserve()
            self.log.append(frames, first_seq, due_ns, kind, joined)
        except OSError as error:
            self._storage.failed(error)
            raise
        if self._storage.error is not None:
            self._storage.succeeded()

    def _hold(self, frames: Sequence[bytes], first_seq: int) -> bool:
        """Keep messages in memory, and write older ones if need be. Returns False if memory is too small for them."""
        tail = self.log.tail
        assert tail is not None, "`serve` comes first"
        while not tail.append(first_seq, frames):
            if self.spill_some():
                return tail.append(first_seq, frames)
        return True

    def append_deferred(self, frames: Sequence[bytes], seq: int, due_ns: int, room: int) -> Sequence[bytes]:
        """Write deferred messages; returns their locations, or nothing if the caller has to keep them in memory.

        `room` is the number of messages that it could keep in addition to these, negative if it cannot keep these.
        `seq` is the number of the next immediate message. Raises ``OSError``.
        """
        tail = self.log.tail
        if room >= 0 and tail is not None and not self.is_write_through:
            if room * _SPILL_AHEAD < tail.count:  # otherwise the first one without room would write all of it
                with suppress(OSError):  # `failed` has noted it
                    self.spill_some()
            return ()
        while not self.spill_some():  # first, because ids grow with the log
            pass
        self.append(frames, seq, due_ns, DEFERRED)
        return locations_of(self.log.last_place, frames)

    def locate(self, frames: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Hand over frames that the caller will fetch again; returns the locations that a short search finds, by id.

        At level ``memory``, those that it does not find are written. Raises ``OSError`` if the caller has to keep them.
        """
        found: dict[bytes, bytes] = {}
        with suppress(OSError):
            found = self.log.locate(map(message_id, frames))
        if self._is_in_memory:
            found |= self.log.keep([frame for frame in frames if message_id(frame) not in found])
        return found

    def keep(self, frames: Sequence[bytes]) -> None:
        """Write messages of another nsqd, which are in no segment. Raises ``OSError``."""
        self._write(partial(self.log.keep, frames))

    def spill_some(self) -> bool:
        """Write some of the messages that are in memory only; returns whether none is left. Raises ``OSError``."""
        return self.is_write_through or self._write(self.log.spill_some)

    def flush(self, frames: Callable[[], Iterable[bytes]]) -> None:
        """Write everything that is in memory only, before nsqd stops. Raises ``OSError``.

        `frames` returns the messages that channels have taken from the stream and hold in memory.
        """
        if self._is_in_memory:
            self.log.spill()
            held = {message_id(frame): frame for frame in frames()}
            self.log.keep([held[each] for each in sorted(held)])
            self._is_flushed = True

    def retain(self, retention: Retention | None) -> None:
        """Keep what channels have finished, or no longer. Raises ``OSError`` if the policy cannot be followed yet.

        While a topic retains messages, they are written to its log at every level of durability.
        """
        if retention is not None and not self.is_write_through:
            while not self.spill_some():
                pass
        self.is_write_through = retention is not None or not self._is_in_memory
        self.retention = retention

    def retained_from(self, now_ns: int) -> int:
        """The number of the first segment that the topic's policy retains. Raises ``OSError``."""
        return _ALL if self.retention is None else retained_from(self.log, self.retention, now_ns)

    def retained(self, now: float) -> tuple[int, float]:
        """The bytes that a policy retains, and the age of the first message, in seconds; zeros without a policy.

        The age is also 0 while the first message is searched for, a step in each call.
        """
        if self.retention is None:
            return 0, 0.0
        first = None
        with suppress(OSError):
            first = oldest(self.log)
        age = 0.0 if first is None else now + self.clock_offset() - first.timestamp_ns / _NS_PER_SECOND
        return sum(segment.end for segment in retained(self.log)), max(0.0, age)

    def stage(self) -> StagedBatch:
        """Create the file of a large publish, see ``TopicLog.stage``. Raises ``OSError``."""
        return self._write(self.log.stage)

    def add_to(self, staged: StagedBatch, frames: Sequence[bytes]) -> None:
        """Write some messages of a large publish. Raises ``OSError``."""
        self._write(partial(staged.add, frames))

    def attach(self, staged: StagedBatch, first_seq: int) -> None:
        """Make the batch a part of the log, after all is spilled. Raises ``OSError``, having done nothing."""
        self._write(partial(self.log.attach, staged, first_seq), needs_room=False)
        if self._storage.error is not None:
            self._storage.succeeded()

    def _write(self, operation: Callable[[], T], needs_room: bool = True) -> T:
        """Call `operation`, and note a failure. If it needs room, the reserve must be in place. Raises ``OSError``."""
        try:
            if needs_room:
                self._keep_reserve()
            return operation()
        except OSError as error:
            self._storage.failed(error)
            raise

    def _keep_reserve(self) -> None:
        if self._storage.reserve.given_up:
            self._storage.refuse_if_lost()
            # The room that is left is for checkpoints.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def commit(self) -> None:
        """Wait as long as `commit_later`. Raises ``OSError`` if what was appended may be lost."""
        if self.commits:
            self._storage.wait(self.commit_later)

    def sync(self) -> None:
        """At level ``fsync``, wait until appended groups are synced. Raises ``OSError`` if they may not be."""
        if self.syncs:
            self._storage.wait(partial(self._storage.commit, self.log))

    def commit_later(self, done: Done) -> None:
        """Call `done` when appended groups are synced, at level ``fsync``, and when the standby has them."""
        if self.syncs:
            self._storage.commit(self.log, partial(self._confirm, done))
        else:
            self._confirm(done, None)

    def _confirm(self, done: Done, failed_sync: OSError | None) -> None:
        if failed_sync is not None:
            if not self.is_deleted:
                self._storage.failed(failed_sync)
            done(failed_sync)
        elif self._storage.confirm is not None:
            self._storage.confirm(done)
        else:
            done(None)

    def note_missing(self, state: TopicState) -> None:
        """Mark a checkpoint that is about to be written as incomplete, if it names messages that are in no file."""
        first = min((each.position for each in state.backlogs), default=state.end.seq)
        is_written = not self._is_in_memory or self._is_flushed
        state.incomplete = not is_written or first < min(self.log.complete_from, state.end.seq)

    def is_saved(self, end: LogEnd | None) -> bool:
        """Whether a checkpoint of that end of the log, and the files, have all messages."""
        return not self._is_in_memory and self.log.end == end

    def write_checkpoint(self, *pieces: bytes) -> None:
        """Write the next checkpoint, for ``adopt_checkpoint``; may run in a thread of its own. Raises ``OSError``.

        At level ``fsync`` the log has to be synced before.
        """
        files, reserve = self._storage.files, self._storage.reserve
        self._storage.refuse_if_lost()  # another folder may be at its path, with an older log
        try:
            write_temporary(files, self._checkpoint_path, *pieces, sync=self.syncs)
        except OSError as error:
            if error.errno != errno.ENOSPC or not (reserve.held or reserve.given_up):
                raise
            if reserve.held:  # another thread may have given it up just now
                reserve.give_up()
            write_temporary(files, self._checkpoint_path, *pieces, sync=self.syncs)

    def open_checkpoint(self) -> int | None:
        """A descriptor of the present checkpoint, if there is one.

        The system frees the pages of a replaced file when its last descriptor is closed. For 16 MB that takes 10 ms.
        """
        with suppress(OSError):
            return self._storage.files.open(self._checkpoint_path, os.O_RDONLY)
        return None

    def adopt_checkpoint(self) -> None:
        """Replace the checkpoint by the one written last; the next ``commit`` makes that durable. Raises ``OSError``.

        Must not run in a thread: the topic may have been deleted meanwhile, and another of its name created.
        """
        adopt_temporary(self._storage.files, self._checkpoint_path)
        if self.syncs:
            self.log.note_new_name()

    def release(self, saved: TopicState, pause: Callable[[], None], kept_from: Callable[[], int]) -> None:
        """Delete files that neither this checkpoint, which is saved, nor a later one needs, and `pause` in between.

        `kept_from`: as for ``TopicLog.release``.
        """
        backlogs = saved.backlogs
        seq = min((each.position for each in backlogs), default=saved.end.seq)

        def unfinished() -> Iterable[bytes]:
            # Compiled, a generator expression is a list.
            return map(entry_id, chain.from_iterable(each.all_entries() for each in backlogs))

        commit = partial(self._storage.wait, partial(self._storage.commit, self.log))
        self.log.release(seq, unfinished, saved.end, commit, pause, kept_from)

    def delete(self) -> None:
        """Delete the folder. Files that cannot be deleted now are deleted at the next start."""
        self.is_deleted = True
        try:
            self.log.delete(durably=self.syncs)
        except OSError as error:
            self._storage.failed(error)
