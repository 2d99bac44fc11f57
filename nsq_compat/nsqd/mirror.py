"""The primary's side of mirroring: a connection to the standby, over which every change of the data path goes.

With `sync`, a publish waits for the standby's acknowledgement, as at level fsync it waits for the disk: one round trip
for all publishes of an event-loop iteration. While the standby is away for longer than `timeout`, nsqd continues alone
or refuses publishes.
"""

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import gevent
from gevent.event import AsyncResult, Event

from nsq_compat.cli.kinds import OptionError
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.log.data_path import NotMirrored, reason, resolved
from nsq_compat.log.files import Files
from nsq_compat.log.identity import FoundEnd, Identity
from nsq_compat.log.mirror_copy import catch_up
from nsq_compat.log.mirrored_files import ROUNDS, Changes, Confirmations
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopTick, yield_to_loop
from nsq_compat.net.sockets import Dialer
from nsq_compat.net.tls import StandardTls
from nsq_compat.nsqd.durability import wait_for
from nsq_compat.nsqd.options import REFUSE, NsqdOptions
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.mirror import command, ends_in, object_in
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.session.mirror_session import Ended, MirrorSession

log = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 26
"""Changes that may wait. With more, the connection is closed, and the files are compared again."""
_COPIES_ON_THE_WAY: Final = 8
"""Commands of a copy without an answer; each has up to 512 KiB."""
_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 5.0
_CONNECT_SECONDS: Final = 2.0
_NO_ENDS: Final[Mapping[str, int]] = MappingProxyType({})


class Adopted(NamedTuple):
    """What the standby has taken over of a topic."""

    offset: int
    """The standby has the messages before this one; 0 if it may not have all."""
    last_id: str
    empty_until: int
    """From `offset` up to this one, no message is here."""
    channels: Sequence[str]
    """The channels that it had, if they may be missing here."""


def make_mirror(
    options: NsqdOptions,
    files: Files,
    changes: Changes,
    confirmations: Confirmations,
    own: Identity,
    tick: LoopTick,
    *,
    describe: Callable[[], Mapping[str, object]],
    forget: Callable[[Mapping[str, Adopted]], None],
) -> "Mirror":
    """The connection to the standby. Raises ``OptionError``."""
    tls: dict[str, object] = {}
    if options.tls_root_ca_file:
        tls["ca_certs"] = options.tls_root_ca_file
    if options.tls_cert:
        tls |= {"certfile": options.tls_cert, "keyfile": options.tls_key}
    timeout = options.mirror_timeout / SECOND
    try:
        settings = ConnectionSettings(
            client_id=options.broadcast_address,
            timeout=max(timeout, _CONNECT_SECONDS),
            heartbeat_interval=1,
            tls_v1=options.mirror_tls,
            tls_options={"check_hostname": True, **tls} if tls else None,
            snappy=options.mirror_compression == "snappy",
            deflate=options.mirror_compression == "deflate",
            auth_secret=options.mirror_auth_secret or None,
        )
        make_tls = partial(StandardTls, settings.tls_context(), split_address(options.mirror_to)[0])
    except (OSError, ValueError) as error:
        raise OptionError(f"--mirror-to: {error}") from None
    return Mirror(
        options.mirror_to,
        settings,
        make_tls,
        tick,
        files=files,
        data_path=resolved(options.data_path),
        changes=changes,
        confirmations=confirmations,
        identity=own,
        refuses=options.mirror_lost == REFUSE,
        timeout=timeout,
        describe=describe,
        forget=forget,
    )


class State(Enum):
    GONE = "not connected"
    CATCHING_UP = "catching up"
    IN_SYNC = "in sync"


class Mirror:
    """Keeps the standby at `address` equal to `data_path`, from `start` to `stop`.

    `describe` returns what the standby shows of this nsqd. `forget` is called with the topics that the standby has
    taken over. It must not wait for the standby. `tick` is that of the clients' connections, so that changes leave
    together, at the end of the iteration in which they were made.
    """

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        make_tls: Callable[[], StandardTls],
        tick: LoopTick,
        *,
        files: Files,
        data_path: str,
        changes: Changes,
        confirmations: Confirmations,
        identity: Identity,
        refuses: bool,
        timeout: float,
        describe: Callable[[], Mapping[str, object]],
        forget: Callable[[Mapping[str, Adopted]], None],
    ) -> None:
        self.address = address
        self.state = State.GONE
        self.since = time.time()
        """When `state` began, or when the standby was lost, Unix seconds."""
        self.was_asked = Event()
        """Set after the first attempt to reach the standby."""
        self._settings = settings
        self._make_tls = make_tls
        self._tick = tick
        self._files = files
        self._data_path = data_path
        self._changes = changes
        self._confirmations = confirmations
        self._identity = identity
        self._refuses = refuses
        self._timeout = timeout
        self._describe = describe
        self._forget = forget
        self._connection: Connection[MirrorSession] | None = None
        self._progress = Event()  # while it is catching up
        self._last_failure = ""
        self._pause = _FIRST_PAUSE  # before the next attempt
        self._run_of_standby: object = None
        self._running = gevent.Greenlet(self._run)
        self._watching = gevent.Greenlet(self._watch)
        confirmations.refusal = self._refusal
        confirmations.on_progress = self._progress.set
        self._main = threading.get_ident()
        self._loop = gevent.get_hub().loop
        changes.on_change = self._on_change
        changes.on_replaced = self._on_replaced

    def start(self, ends: Mapping[str, FoundEnd]) -> None:
        """`ends`: those of the logs, by topic, as they were restored. Raises ``OSError``."""
        if self._identity.ends is None:
            self._identity.ends = dict(ends)
            self._save()
        self._confirmations.is_started = True
        self._running.start()
        self._watching.start()

    def stop(self) -> None:
        """Send what is left, and end."""
        with suppress(OSError):
            wait_for(self._confirmations.confirm)
        self._running.kill()
        self._watching.kill()
        self._confirmations.let_all_go()

    @property
    def behind(self) -> int:
        """Changes that the standby has not acknowledged."""
        return self._changes.position - self._confirmations.acknowledged

    def state_of_standby(self) -> dict[str, object]:
        """For /mirror. `since` is when the state began, in Unix seconds."""
        return {
            "address": self.address,
            "state": self.state.value,
            "since": int(self.since),
            "seconds": round(time.time() - self.since, 1),
            "behind": self.behind,
            "failure": "" if self.state is State.IN_SYNC else self._last_failure,
            "when_lost": REFUSE if self._refuses else "continue",
        }

    # --- Publishes ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Let go of publishes that have waited for too long."""
        while True:
            gevent.sleep(self._timeout / ROUNDS)
            if self._confirmations.next_round():
                self._note(State.GONE)
                self._fail(f"no acknowledgement within {self._timeout:g} s")

    def _refusal(self) -> NotMirrored | None:
        """What becomes of a publish that the standby does not have."""
        return NotMirrored(f"the standby {self.address} is not in sync") if self._refuses else None

    # --- The connection -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            failure = "closed"
            try:
                failure = self._converse()
            except OSError as error:
                failure = _why(error)
            except Exception:  # the top of a greenlet
                log.exception("MIRROR(%s): internal error", self.address)
            level = logging.DEBUG if failure == self._last_failure else logging.ERROR
            log.log(level, "MIRROR(%s): %s; messages are not mirrored", self.address, failure)
            self._last_failure = failure
            self.was_asked.set()
            gevent.sleep(self._pause)
            self._pause = min(2 * self._pause, _MAX_PAUSE)

    def _converse(self) -> str:
        """Connect, and return why the connection has ended. Raises ``OSError``."""
        client = Dialer(self.address).connect(self._settings.timeout)
        connection = Connection(
            client, self.address, self._make_session, self._make_tls, session_waits=False, tick=self._tick
        )
        connection.actor = "MIRROR"
        completing = gevent.spawn(self._complete, connection.session)
        try:
            connection.wake()
            connection.run()
        finally:
            self._leave(connection.session)
            completing.kill()
        return connection.session.failure

    def _make_session(self, connection: Connection[MirrorSession], now: float, now_ns: int) -> MirrorSession:
        self._connection = connection
        return MirrorSession(
            self._settings.identify(),
            self._changes,
            auth_secret=self._settings.secret(),
            wake=connection.wake,
            on_acknowledged=self._confirmations.acknowledge,
            timeout=self._settings.timeout,
            now=now,
        )

    def _leave(self, session: MirrorSession) -> None:
        """Confirm nothing from here on, because changes are not noted any more."""
        self._confirmations.lose()
        if self.state is not State.GONE:
            self._note(State.GONE)
        self._connection = None
        self._changes.forget()
        session.end("closed")

    def _complete(self, session: MirrorSession) -> None:
        """Make the copy complete, from the first command on a connection."""
        try:
            self._catch_up(session)
        except (OSError, NsqError, ValueError) as error:
            self._fail(_why(error))
        except Ended:
            pass
        except Exception:  # the top of a greenlet
            log.exception("MIRROR(%s): internal error", self.address)
            self._fail("internal error")

    def _catch_up(self, session: MirrorSession) -> None:
        began = time.monotonic()
        own = self._identity
        runs = [own.run, *own.known_as.values()]
        hello = {"identity": own.identity, "epoch": own.epoch, "runs": runs, **self._describe()}
        answer = object_in(_ask(session, command("hello", json.dumps(hello).encode())))
        if answer.get("run") != self._run_of_standby:
            self._run_of_standby = answer.get("run")
            self._changes.equal.clear()
        if answer.get("knows_run") is False:  # the copy is of a run that this data path does not know
            own.may_lack_files = True
        self._forget_adopted(session, answer)
        self._compare_ends(session, str(answer.get("identity", "")))
        self.was_asked.set()
        self._note(State.CATCHING_UP)
        # What was lost with an earlier connection is in the copy.
        self._confirmations.acknowledged = self._changes.position
        session.sends_changes = True
        self._copy(session)
        position = self._changes.position
        while self._confirmations.acknowledged < position:
            self._progress.wait()
            self._progress.clear()
        _ask(session, command("complete"))
        log.info("MIRROR(%s): in sync after %.1f s", self.address, time.monotonic() - began)
        self._note(State.IN_SYNC)
        self._pause = _FIRST_PAUSE
        self._last_failure = ""
        self._confirmations.resolve()

    def _copy(self, session: MirrorSession) -> None:
        steps = catch_up(self._files, self._data_path, self._changes, pause=yield_to_loop)
        on_the_way: deque[AsyncResult[bytes]] = deque()
        try:
            with suppress(StopIteration):
                step = next(steps)
                while True:
                    if isinstance(step, bytes):
                        step = steps.send(_ask(session, step))
                        continue
                    applied: AsyncResult[bytes] = AsyncResult()
                    session.ask_to_apply(step, applied)
                    on_the_way.append(applied)
                    if len(on_the_way) > _COPIES_ON_THE_WAY:
                        on_the_way.popleft().get()
                    step = steps.send(b"")
            for applied in on_the_way:
                applied.get()
        except BaseException:
            self._changes.equal.clear()  # it may have files that the standby has not got
            raise
        finally:
            steps.close()  # and the file that is being copied

    def _forget_adopted(
        self, session: MirrorSession, answer: Mapping[str, object], ends: Mapping[str, int] = _NO_ENDS
    ) -> None:
        standby, takeover = str(answer.get("identity", "")), str(answer.get("takeover", ""))
        adopted = answer.get("adopted")
        if not takeover or not isinstance(adopted, dict):
            return
        if self._identity.forgotten.get(standby) != takeover:
            makes_channels = bool(ends) or self._identity.may_lack_files
            found = _adopted_in(adopted, answer.get("channels") if makes_channels else {}, ends)
            log.warning(
                "MIRROR(%s): the standby has taken over %d topics, their messages are forgotten here",
                self.address,
                len(adopted),
            )  # fmt: skip
            self._forget(found)
            self._identity.forgotten[standby] = takeover
            self._save()
        _ask(session, command("forgotten"))

    def _compare_ends(self, session: MirrorSession, standby: str) -> None:
        """Have the standby take over what it has and the last start has not found, before the copy is changed.

        At --durability=os, a machine that loses its power loses what was written last. A data path that was copied, or
        restored, lacks what was written since.
        """
        if self._identity.ends is None:
            return
        behind = self._identity.topics_behind(ends_in(_ask(session, command("ends"))))
        if behind:
            log.error(
                "MIRROR(%s): messages are missing here that the standby has, so it takes over their topics: %s",
                self.address,
                ", ".join(sorted(behind)),
            )  # fmt: skip
            topics = json.dumps([(topic, end.after_messages) for topic, end in behind.items()]).encode()
            answer = object_in(_ask(session, command("adopt", topics)))
            self._forget_adopted(session, answer, {topic: end.next_offset for topic, end in behind.items()})
        self._identity.ends = None
        self._identity.may_lack_files = False
        self._identity.known_as[standby] = self._identity.run
        self._save()

    def _save(self) -> None:
        self._identity.save(self._files, self._data_path)

    # --- States -------------------------------------------------------------------------------------------------------

    def _note(self, state: State) -> None:
        self.state = state
        self.since = time.time()
        self._confirmations.in_sync = state is State.IN_SYNC

    def _fail(self, failure: str) -> None:
        """End the connection."""
        connection = self._connection
        if connection is not None:
            connection.session.end(failure)
            connection.abort()

    def _on_change(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if threading.get_ident() != self._main:
            self._loop.run_callback_threadsafe(self._on_change)
        elif self._changes.waiting_bytes > _MAX_BYTES:
            self._fail("the standby is too slow")
        else:
            connection.wake()

    def _on_replaced(self) -> None:
        self._fail("a topic was replaced, all files are compared again")


def _adopted_in(adopted: Mapping[str, object], had: object, ends: Mapping[str, int]) -> dict[str, Adopted]:
    """What a standby says that it has adopted, and of which channels. Raises ``ValueError`` unless it can be so."""
    found: dict[str, Adopted] = {}
    channels = had if isinstance(had, dict) else {}
    for topic, end in adopted.items():
        names = channels.get(topic, [])
        match end:
            # Topics and channels of these names are created.
            case [int(offset), str(last_id)] if isinstance(names, list) and all(map(_is_name, [topic, *names])):
                found[topic] = Adopted(offset, last_id, ends.get(topic, 0), names)
            case _:
                raise ValueError(f"the standby has taken over {topic!r} in a way that no nsqd does")
    return found


def _is_name(value: object) -> bool:
    return isinstance(value, str) and is_valid_name(value)


def _ask(session: MirrorSession, request: bytes) -> bytes:
    """Send a command, and return its answer. Raises ``NsqError`` and ``Ended``."""
    answer: AsyncResult[bytes] = AsyncResult()
    session.ask(request, answer)
    return answer.get() or b""


def _why(error: Exception) -> str:
    if isinstance(error, socket.gaierror):  # its number is not one of the system's
        return f"cannot resolve the name: {error.strerror}"
    return reason(error) if isinstance(error, OSError) and error.errno else str(error)
