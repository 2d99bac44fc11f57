"""The standby's side of mirroring: copies of other nsqds' data paths below ``mirrors/``, taken over if need be.

A copy is a data path itself: ``mirrors/<identity>/nsqd.dat`` and ``mirrors/<identity>/nsq_compat/<topic>.topic/``.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, ParamSpec

import gevent
from gevent.lock import BoundedSemaphore

from nsq_compat.log.data_path import (
    MIRROR_STATE,
    MIRRORS,
    NotMirrored,
    our_folder,
    reason,
    remove_leftovers,
    remove_topic_folder,
    topic_folder,
    topics_in,
)
from nsq_compat.log.files import Files, read_file, replace_file
from nsq_compat.log.metadata import MetadataError, TopicMetadata, recover_metadata
from nsq_compat.log.mirror_copy import MirrorCopy
from nsq_compat.log.offsets import id_at
from nsq_compat.log.reading import sorted_ids
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.log.storage import Storage
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.nsqd.durability import in_thread, in_threads
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.go_json import INT64, STRING, Fields, list_of, loads_object, loads_untyped
from nsq_compat.protocol.mirror import decode_changes
from nsq_compat.protocol.names import is_ephemeral, is_valid_name
from nsq_compat.queue.backlog import prepare
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_ids import PublishIds
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

P = ParamSpec("P")

_IDENTITY: Final = re.compile("[0-9a-f]{32}")
_POLL_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 10.0
"""Until a take-over that failed is tried again by itself."""
_MAX_HELLO_BYTES: Final = 1 << 16
_MAX_ADDRESS: Final = 255
_MAX_COPIES: Final = 64
"""Each may have 64 files open."""
_READERS: Final = 2
"""Threads that read copies for primaries that catch up. There are ten for everything."""
_HELLO: Final[Fields] = {
    "identity": STRING,
    "epoch": INT64,
    "runs": list_of(STRING),
    "node_id": INT64,
    "broadcast_address": STRING,
    "tcp_port": INT64,
    "http_port": INT64,
}
_MERGED_AT_ONCE: Final = 500
_PAUSE_SECONDS: Final = 1e-4
E_MIRROR_FAILED: Final = "E_MIRROR_FAILED"


@dataclass
class MirrorState:
    """What is stored beside a copy.

    `takeover` names the last take-over, until the primary says that it has forgotten the messages; `adopted` are its
    topics, each with the offset up to which it had all messages, and `channels` those that each had. `is_complete`: the
    copy was in sync, and has followed every change since.
    """

    identity: str
    epoch: int = 0
    run: str = ""
    """The start of the primary that was connected last."""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    is_complete: bool = False
    takeover: str = ""
    adopted: dict[str, tuple[int, str]] = field(default_factory=dict)
    channels: dict[str, list[str]] = field(default_factory=dict)
    adopting: bool = False
    """A take-over has begun and is not complete."""
    paused: list[tuple[str, str]] = field(default_factory=list)
    """The channels, each with its topic, that the take-over pauses."""


class Mirrored:
    """One primary and its copy."""

    def __init__(self, files: Files, folder: str, state: MirrorState, *, syncs: bool) -> None:
        self.files = files
        self.folder = folder
        self.state = state
        self.copy = MirrorCopy(files, folder, syncs=syncs)
        self.session: object | None = None
        """The connection of the primary."""
        self.node_id = -1
        """Of the primary that is connected."""
        self.last_seen = time.time()
        self.lost_at = time.monotonic()
        self.retry_at = 0.0
        self.is_adopting = False
        self.merged: set[str] = set()
        """Topics whose messages are in those of this nsqd, but not in a checkpoint yet."""
        self._saving = BoundedSemaphore()

    @property
    def name(self) -> str:
        return f"{self.state.broadcast_address}:{self.state.tcp_port}"

    def note_complete(self, is_complete: bool) -> None:
        if self.state.is_complete != is_complete:
            self.state.is_complete = is_complete
            self.save()

    def save(self) -> None:
        """Waits for the disk, while others run. Raises ``OSError``."""
        with self._saving:
            # A take-over may change the state meanwhile, so the thread gets the objects that are in it now.
            state = self.state
            in_thread(self._write, replace(state, adopted={**state.adopted}, channels={**state.channels}))

    def _write(self, state: MirrorState) -> None:
        text = json.dumps(asdict(state), indent=1)
        replace_file(self.files, os.path.join(self.folder, MIRROR_STATE), text.encode("utf-8"), sync=True)


class Standby:
    """All copies. `syncs`: acknowledge what is synced. `takeover_after` is in seconds, None for never by itself.

    `is_listed` tells whether an nsqlookupd still lists a primary. `save` writes a checkpoint of a topic,
    `save_metadata` the nsqd.dat of this nsqd. `new_ids`: as ``PolicyEnforcer.new_ids``.
    """

    def __init__(
        self,
        files: Files,
        storage: Storage,
        broker: Broker,
        *,
        identity: str,
        syncs: bool,
        takeover_after: float | None,
        is_listed: Callable[[str, int], bool],
        save: Callable[[Topic], None],
        save_metadata: Callable[[], object],
        new_ids: Callable[[str], PublishIds | None],
    ) -> None:
        self.mirrors: dict[str, Mirrored] = {}
        self._files = files
        self._storage = storage
        self._broker = broker
        self._identity = identity
        self._syncs = syncs
        self._takeover_after = takeover_after
        self._is_listed = is_listed
        self._save = save
        self._save_metadata = save_metadata
        self._new_ids = new_ids
        self._folder = os.path.join(our_folder(storage.data_path), MIRRORS)
        self._run = os.urandom(8).hex()
        self._adopting: Any = None  # the greenlet that takes over
        self._is_stopping = False
        self._reading = BoundedSemaphore(_READERS)
        self._watching = gevent.Greenlet(self._watch)

    def start(self) -> None:
        """Find the copies of earlier runs. A take-over that was interrupted is completed soon. Raises ``OSError``."""
        with suppress(FileExistsError):
            self._files.mkdir(self._folder)
        for name in self._files.listdir(self._folder):
            if _IDENTITY.fullmatch(name):
                self._open(name)
        self._watching.start()

    def stop(self) -> None:
        """Interrupt a take-over, which is completed after the next start: the topics are about to be closed."""
        self._is_stopping = True
        self._watching.kill()
        if self._adopting is not None:
            self._adopting.kill()
        for mirrored in self.mirrors.values():
            mirrored.copy.close()

    def primaries(self) -> list[dict[str, object]]:
        """For /mirror."""
        return [
            {
                "identity": identity,
                "address": each.name,
                "broadcast_address": each.state.broadcast_address,
                "http_port": each.state.http_port,
                "epoch": each.state.epoch,
                "connected": each.session is not None,
                "complete": each.state.is_complete,
                "last_seen": int(each.last_seen),
                "taken_over": sorted(each.state.adopted) if each.state.takeover else None,
            }
            for identity, each in self.mirrors.items()
        ]

    # --- Commands of a primary ----------------------------------------------------------------------------------------

    def execute(self, session: object, verb: str, argument: str, body: bytes) -> bytes:
        """Execute a MIRROR command; returns its answer. Raises ``FatalClientError``."""
        try:
            if verb == "hello":
                return self._hello(session, body)
            mirrored = next((each for each in self.mirrors.values() if each.session is session), None)
            if mirrored is None:
                raise ValueError("hello comes first")
            mirrored.last_seen = time.time()
            return self._execute(mirrored, verb, argument, body)
        except (ValueError, OSError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise FatalClientError(E_MIRROR_FAILED, f"MIRROR failed {why}") from None

    def ended(self, session: object) -> None:
        """A connection has ended, perhaps that of a primary."""
        for mirrored in self.mirrors.values():
            if mirrored.session is session:
                mirrored.session = None
                mirrored.last_seen, mirrored.lost_at = time.time(), time.monotonic()
                mirrored.copy.close()
                log.warning("MIRROR(%s): the primary is not connected any more", mirrored.name)

    def _hello(self, session: object, body: bytes) -> bytes:
        if len(body) > _MAX_HELLO_BYTES:
            raise ValueError(f"a hello of {len(body)} bytes")
        hello = loads_object(body, _HELLO)
        identity, epoch = hello["identity"], hello["epoch"]
        if not _IDENTITY.fullmatch(identity):
            raise ValueError("no identity")
        if identity == self._identity:
            raise ValueError("an nsqd cannot be its own standby")
        if len(hello["broadcast_address"]) > _MAX_ADDRESS:
            raise ValueError(f"a broadcast address of {len(hello['broadcast_address'])} characters")
        if hello["node_id"] == self._broker.limits.node_id:
            raise ValueError(f"both nsqds have --node-id={hello['node_id']}, so two messages could get the same id")
        self._check_node_id(identity, hello)
        if identity not in self.mirrors and len(self.mirrors) >= _MAX_COPIES:
            raise ValueError(f"there are {_MAX_COPIES} copies of other nsqds in {self._folder}; delete the old ones")
        mirrored = self.mirrors.get(identity) or self._open(identity)
        state = mirrored.state
        if state.adopting or mirrored.is_adopting:
            raise ValueError("its topics are being taken over")
        if epoch < state.epoch:
            raise ValueError(f"epoch {epoch} is over, this is epoch {state.epoch}")
        run, knows_run = hello["runs"][0] if hello["runs"] else "", state.run in ("", *hello["runs"])
        if epoch == state.epoch and not knows_run:
            raise ValueError(f"another nsqd with a copy of its data path was here in epoch {epoch}")
        state.epoch, state.run = epoch, run
        state.broadcast_address = hello["broadcast_address"]
        state.tcp_port, state.http_port = hello["tcp_port"], hello["http_port"]
        mirrored.copy.close()  # what an earlier connection still applies ends
        mirrored.session, mirrored.node_id = session, hello["node_id"]
        mirrored.last_seen = time.time()
        mirrored.save()
        if mirrored.session is not session:
            raise ValueError("its topics are taken over now, or it has another connection")
        log.info("MIRROR(%s): connected, epoch %d", mirrored.name, epoch)
        return self._answer(state, knows_run=knows_run)

    def _check_node_id(self, identity: str, hello: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if another primary that is connected has the node id.

        One with the same address may be this machine, before it lost its disk.
        """
        name = f"{hello['broadcast_address']}:{hello['tcp_port']}"
        for each in self.mirrors.values():
            is_other = each.session is not None and each.state.identity != identity and each.name != name
            if is_other and each.node_id == hello["node_id"]:
                raise ValueError(
                    f"{each.name} has --node-id={each.node_id} as well, so two messages could get the same id"
                )

    def _answer(self, state: MirrorState, *, knows_run: bool = True) -> bytes:
        """`knows_run`: the primary has been the run that was connected last, or follows it."""
        answer = {
            "identity": self._identity,
            "run": self._run,
            "knows_run": knows_run,
            "takeover": state.takeover,
            "adopted": state.adopted,
            "channels": state.channels,
        }
        return json.dumps(answer).encode("utf-8")

    def _execute(self, mirrored: Mirrored, verb: str, argument: str, body: bytes) -> bytes:
        copy = mirrored.copy
        if verb == "changes":
            if mirrored.state.takeover:
                raise ValueError("its messages were taken over")
            copy.apply(decode_changes(body), pause=yield_to_loop, remove=_remove_in_thread)
            if self._syncs:
                copy.sync(in_threads, pause=yield_to_loop)
            return b"OK"
        if verb == "files":
            mirrored.note_complete(False)
            with self._reading:
                return in_thread(_json_of, copy.units)
        if verb == "complete":
            mirrored.note_complete(True)
            return b"OK"
        if verb == "sums":
            with self._reading:
                return in_thread(_json_of, copy.sums, argument)
        if verb == "ends":
            with self._reading:
                return in_thread(_json_of, copy.ends)
        if verb == "adopt":
            self.adopt(mirrored.state.identity, _offsets_in(body))
            return self._answer(mirrored.state)
        if verb == "forgotten":
            state = mirrored.state
            state.takeover, state.adopted, state.channels = "", {}, {}
            mirrored.save()
            return b"OK"
        raise ValueError(f"there is no MIRROR {verb}")

    def _open(self, identity: str) -> Mirrored:
        folder = os.path.join(self._folder, identity)
        for path in (folder, our_folder(folder)):
            with suppress(FileExistsError):
                self._files.mkdir(path)
        remove_leftovers(self._files, our_folder(folder))
        state = MirrorState(identity)
        try:
            state = MirrorState(**json.loads(read_file(self._files, os.path.join(folder, MIRROR_STATE))))
        except FileNotFoundError:
            pass
        except (TypeError, ValueError) as error:
            log.error("MIRROR(%s): %s is damaged, and begun again - %s", identity, MIRROR_STATE, error)
        mirrored = self.mirrors[identity] = Mirrored(self._files, folder, state, syncs=self._syncs)
        return mirrored

    # --- Taking over --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            after = self._takeover_after
            for mirrored in list(self.mirrors.values()):
                if time.monotonic() < mirrored.retry_at:
                    continue
                try:
                    is_lost = after is not None and self._is_lost(mirrored, after)
                    if (mirrored.state.adopting or is_lost) and self._adopting is None:
                        self.adopt(mirrored.state.identity)
                    continue
                except (OSError, ValueError) as error:
                    why = reason(error) if isinstance(error, OSError) else str(error)
                    log.error("MIRROR(%s): cannot take over, and tries again - %s", mirrored.name, why)
                except Exception:  # the top of a greenlet
                    log.exception("MIRROR(%s): internal error", mirrored.name)
                mirrored.retry_at = time.monotonic() + _RETRY_SECONDS
            gevent.sleep(_POLL_SECONDS)

    def _is_lost(self, mirrored: Mirrored, after: float) -> bool:
        state = mirrored.state
        return (
            self._is_away(mirrored, after)
            and bool(topics_in(self._files, mirrored.folder))
            and (self._is_replaced(mirrored) or not self._is_listed(state.broadcast_address, state.tcp_port))
            and self._is_away(mirrored, after)  # it may have connected while nsqlookupds were asked
        )

    def _is_away(self, mirrored: Mirrored, after: float) -> bool:
        return mirrored.session is None and time.monotonic() - mirrored.lost_at >= after

    def _is_replaced(self, mirrored: Mirrored) -> bool:
        """Whether another primary is connected that has its address, such as the same machine with an empty disk."""
        others = (each for each in self.mirrors.values() if each is not mirrored)
        return any(each.session is not None and each.name == mirrored.name for each in others)

    def adopt(self, identity: str, offsets: Mapping[str, int] | None = None) -> list[str]:
        """Take over the topics of a primary; returns their names. Raises ``KeyError``, ``ValueError``, ``OSError``.

        The copy of a topic becomes this nsqd's own, or its unfinished messages become those of the topic that this nsqd
        has. After a crash, the rest follows at the next start. If a topic fails, the others are served, and it is tried
        again.

        `offsets`: the primary, which is connected, asks for these topics, of which it has what is before these offsets.
        """
        mirrored = self.mirrors[identity]
        state = mirrored.state
        if self._is_stopping:
            raise ValueError("nsqd stops")
        if self._adopting is not None:
            raise ValueError("another take-over is going on")
        self._adopting, mirrored.is_adopting = gevent.getcurrent(), True
        try:
            return self._adopt(mirrored, state, offsets)
        finally:
            self._adopting, mirrored.is_adopting = None, False

    def _adopt(self, mirrored: Mirrored, state: MirrorState, offsets: Mapping[str, int] | None) -> list[str]:
        if offsets is None:
            mirrored.session = None
        mirrored.copy.close()
        wanted = state.adopted if state.adopting else offsets
        names = [
            name
            for name in topics_in(self._files, mirrored.folder)
            if is_valid_name(name) and (wanted is None or name in wanted)
        ]
        if not names and not state.adopting:
            raise ValueError("there is no copy of a topic")
        log.warning("MIRROR(%s): taking over %d topics of epoch %d", mirrored.name, len(names), state.epoch)
        try:
            known = {topic.name: topic for topic in in_thread(recover_metadata, self._files, mirrored.folder)}
        except MetadataError as error:
            raise ValueError(str(error)) from None
        if not state.adopting:
            state.takeover, state.adopted, state.channels, state.adopting = os.urandom(8).hex(), {}, {}, True
            taken_over = set(names)
            state.paused = [
                (topic.name, channel.name)
                for topic in known.values()
                for channel in topic.channels
                if topic.name in taken_over and channel.paused and not self._has_channel(topic.name, channel.name)
            ]
            for name in names:
                limit = None if offsets is None else offsets[name]
                end, channels = in_thread(self._end_of, mirrored, name, limit)
                # A primary that returns keeps the messages of an incomplete copy.
                state.adopted[name] = end if state.is_complete else (0, "")
                named = {each.name for each in known[name].channels} if name in known else set()
                state.channels[name] = sorted(each for each in {*channels, *named} if not is_ephemeral(each))
        mirrored.save()
        self._pause(state)
        failure: OSError | None = None
        for name in sorted(names, key=self._broker.topics.__contains__):  # merging takes memory, so it comes last
            try:
                if name in self._broker.topics:
                    self._merge(mirrored, name)
                else:
                    self._move(mirrored, known.get(name, TopicMetadata(name)))
            except OSError as error:
                log.error("MIRROR(%s): TOPIC(%s): cannot take over - %s", mirrored.name, name, reason(error))
                failure = error
            yield_to_loop()
        self._save_metadata()  # which has the pauses
        if failure is not None:
            raise failure
        if not topics_in(self._files, mirrored.folder):
            with suppress(FileNotFoundError):
                self._files.unlink(os.path.join(mirrored.folder, "nsqd.dat"))
        state.adopting, state.paused = False, []
        mirrored.save()
        log.info("MIRROR(%s): has taken over %d topics", mirrored.name, len(names))
        return names

    def _end_of(self, mirrored: Mirrored, name: str, limit: int | None) -> tuple[tuple[int, str], Iterable[str]]:
        """The offset after a copy, at most `limit`, the id of the message before that, and the channels."""
        try:
            folder = topic_folder(mirrored.folder, name)
            with StoredTopic(self._files, folder, sort=_sorted_ids) as stored:
                offset = stored.state.end.seq + stored.log.deferred_count
                offset = offset if limit is None else min(offset, limit)
                return (offset, id_at(stored.log, offset - 1).decode("ascii")), stored.state.channels
        except OSError:
            return (0, ""), ()  # the primary keeps its messages; the take-over of the topic logs the error

    def _move(self, mirrored: Mirrored, metadata: TopicMetadata) -> None:
        """The copy becomes the topic. What may take long is done in threads, before that."""
        name, storage = metadata.name, self._storage
        copy, own = topic_folder(mirrored.folder, name), topic_folder(storage.data_path, name)
        stored = in_thread(_read_copy, storage, copy)
        try:
            ids = self._read_ids(name, stored)
            if name in self._broker.topics:  # created meanwhile
                stored.log.close()
                self._merge(mirrored, name)
                return
            store = storage.adopt(name, stored.log)
        except OSError:
            stored.log.close()
            raise
        channels = [channel.name for channel in metadata.channels]
        try:
            topic = self._broker.adopt(name, store, stored, channels, time.monotonic(), time.time_ns())
        except OSError:
            storage.files.rename(own, copy)
            raise
        if ids is not None:
            topic.take_ids(ids, time.monotonic())
        self._pause(mirrored.state, name)

    def _pause(self, state: MirrorState, topic: str = "") -> None:
        """Pause what the take-over pauses, in one topic or in all."""
        for name, channel in state.paused:
            if topic in ("", name) and self._has_channel(name, channel):
                self._broker.topics[name].channels[channel].pause()

    def _has_channel(self, topic: str, channel: str) -> bool:
        return topic in self._broker.topics and channel in self._broker.topics[topic].channels

    def _merge(self, mirrored: Mirrored, name: str) -> None:
        """The unfinished messages of the copy become those of the topic of this nsqd."""
        folder = topic_folder(mirrored.folder, name)
        if name not in mirrored.merged:
            with in_thread(StoredTopic, self._files, folder, sort=_sorted_ids) as stored:
                topic = self._broker.topic(name, checked=False)
                if (ids := self._read_ids(name, stored)) is not None:
                    for time_ns, digests in ids.parts():
                        topic.add_ids(digests, time_ns, time.monotonic())
                        yield_to_loop()
                self._take_in(mirrored, topic, stored)
            mirrored.merged.add(name)
        # The next checkpoint has them. Until it is written, the copy stays, and they would come twice after a crash.
        self._save(self._broker.topic(name, checked=False))
        remove_topic_folder(self._files, folder)
        mirrored.merged.discard(name)

    def _read_ids(self, topic: str, stored: StoredTopic) -> PublishIds | None:
        """The publish ids of a copy, also those of finished messages; None if this nsqd has no window for them."""
        ids = self._new_ids(topic)
        if ids is not None and stored.state.has_headers:
            in_thread(ids.recall, stored.log, time.time_ns())
        return ids

    def _take_in(self, mirrored: Mirrored, topic: Topic, stored: StoredTopic) -> None:
        for channel in sorted(stored.state.channels):
            with suppress(NotMirrored):  # the channel is made; its own standby gets it later
                topic.channel(channel)
        self._pause(mirrored.state, topic.name)
        for receiver, messages in stored.unfinished(time.time_ns()):
            receivers = [receiver] if receiver is not None else sorted(topic.channels)
            batches = _batches(messages)
            while batch := in_thread(next, batches, None):
                topic.take_in(receivers, batch, time.monotonic(), time.time_ns())
                yield_to_loop()


def _remove_in_thread(files: Files, folder: str) -> None:
    in_thread(remove_topic_folder, files, folder)


def _json_of(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bytes:
    """The result of `work`, in a thread. There may be millions of values, which `json.dumps` would encode in one go."""
    return "".join(json.JSONEncoder().iterencode(work(*args, **kwargs))).encode("utf-8")


def _offsets_in(body: bytes) -> dict[str, int]:
    """The topics that a primary wants to be taken over, each with an offset. Raises ``ValueError``."""
    found: dict[str, int] = {}
    pairs = loads_untyped(body)
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(name), int(offset)]:
                found[name] = offset
            case _:
                raise ValueError("adopt needs topics and offsets")
    return found


def _read_copy(storage: Storage, folder: str) -> StoredTopic:
    """Open a copy in order to move it, in a thread: there may be a million messages. Raises ``OSError``."""
    stored = StoredTopic(storage.files, folder, storage.segment_size, migrates=True, sort=_sorted_ids)
    if stored.checkpoint_error:
        log.error("the checkpoint in %s is damaged (%s): all messages in the log are delivered again",
            folder, stored.checkpoint_error)  # fmt: skip
    shift = stored.recovered.clock_offset - storage.clock_offset()
    for state in stored.recovered.backlogs:
        if state is not stored.recovered.everything:  # channels without a state get a copy of that
            prepare(state, shift, _pause_thread)
    return stored


def _pause_thread() -> None:
    """Let the event loop run, because compiled code keeps the interpreter's lock."""
    time.sleep(_PAUSE_SECONDS)


def _sorted_ids(ids: Iterable[bytes]) -> list[bytes]:
    return sorted_ids(ids, _pause_thread)


def _batches(messages: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    for message in messages:
        batch.append(message)
        if len(batch) >= _MERGED_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
