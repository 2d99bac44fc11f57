"""One TCP connection: a socket, the session that implements its protocol, and the greenlet that reads.

If the session never waits, the callback of the socket's watcher receives, feeds the session and flushes, all inside the
event loop, which saves two greenlet switches. The greenlet then runs only for work that takes time: an upgrade, data
that inflates, a client that does not read its replies. It is made when there is such work (`start`), because making one
takes a sixth of the time of a short connection. If the session may wait, the greenlet does all of this, except
for commands that need no wait (`receive_at_once`). If the session's commands are published together with those of other
connections (`awaits_publish`), the replies are sent at the end of the event-loop iteration.

`flush` sends without waiting. `wake` schedules a flush for the end of the iteration, so one system call sends all that
an iteration produces for a client, and an idle consumer needs no second greenlet. Messages are sent before the OK of
their producer. If the socket does not accept all bytes, a writer greenlet sends the rest.

There may be codecs between socket and session: TLS next to the socket, and a compression above it.

Invariants:

- *One writer at a time.* While the writer greenlet has bytes left, nothing else sends.
- Only the writer waits for the socket to accept bytes, for at most the session's write timeout plus the time that the
  slowest accepted link needs.
- Reading continues while messages wait to be sent, because a client may send all its FINs before it reads again. It
  pauses when more than `MAX_OWED_REPLIES` bytes of replies wait, because such a client does not read.
- A client can read the last reply. After a fatal error only our side is shut down, and received bytes are dropped for
  a moment. Closing at once would make the kernel reset the connection and lose the error frame.
- Data that inflates is decoded in pieces, and a session with more work than it does at once (`has_unread`) is called
  again, by the greenlet. Each piece is answered before the next, and other connections run in between.
- At most `event_loop.MAX_ENDINGS` connections end in one iteration, even if thousands of clients disconnect at once.
- Reads take a few milliseconds of an iteration, and so do flushes and steps of TLS handshakes; addresses take turns
  (`event_loop.TimeLimit`).
- Nothing that a client sends or omits affects another connection.
- A session is given a monotonic time that was read after the wall-clock time. A deferred message is due by the former,
  and does not come early by its timestamp, which is the latter.
"""

import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import gevent
from gevent.monkey import get_original

from nsq_compat.log.data_path import reason
from nsq_compat.net.event_loop import BusyPoll, LoopTick, endings, handshakes, yield_to_loop
from nsq_compat.net.tls_codec import MakeTls, Tls, TlsError
from nsq_compat.protocol.compression import Codec, CompressionError
from nsq_compat.protocol.names import network_of_peer
from nsq_compat.session.conversation import Conversation, Upgrade

log = logging.getLogger(__name__)

Session = TypeVar("Session", bound=Conversation)

RECEIVE_SIZE: Final = 64 * 1024
"""From 128 KiB on, allocating the buffer for a read costs more than the read (measured: 16.7 us against 2.6 us)."""
SMALL_READ: Final = 479
"""Bytes; most requests are smaller. Python allocates a buffer of this size without calling malloc."""
MAX_OWED_REPLIES: Final = 64 * 1024
_READ: Final = 1
_WRITE: Final = 2
_poll: Final = get_original("select", "poll")
"""That of gevent, which replaces it in nsqadmin, does not know POLLRDHUP."""
_monotonic: Final = time.monotonic
_time_ns: Final = time.time_ns


def _encode_with(compression: Codec, tls: Tls | None) -> Callable[[bytes], bytes]:
    return compression.encode if tls is None else lambda data: tls.encode(compression.encode(data))


def _unsent(pieces: Sequence[bytes | memoryview], sent: int) -> list[memoryview]:
    """What remains of the pieces after the first `sent` bytes."""
    owed: list[memoryview] = []
    for piece in pieces:
        if sent < len(piece):
            owed.append(memoryview(piece)[sent:])
        sent = max(0, sent - len(piece))
    return owed


class Connection(Generic[Session]):
    """Owns an accepted or connected socket.

    `run` serves it and returns when the connection is closed; `start` serves it and returns at once. `close` sends
    pending replies first, `abort` closes at once; both may be called at any time. `session_waits`: whether
    `receive_data` may switch to other greenlets. The socket does not block. `actor` names the other side in log lines.
    """

    actor = "client"

    def __init__(
        self,
        client: socket.socket,
        peer: str,
        make_session: Callable[["Connection[Session]", float, int], Session],
        make_tls: MakeTls | None = None,
        receive_size: int = RECEIVE_SIZE,
        *,
        session_waits: bool = True,
        busy_poll: BusyPoll | None = None,
        tick: LoopTick | None = None,
    ) -> None:
        hub = gevent.get_hub()
        self.peer = peer
        self._client: str | None = None
        self._hub = hub
        self._socket = client
        self._recv = client.recv
        self._send = client.send
        self._readable = hub.loop.io(client.fileno(), _READ)
        self._alarm = hub.loop.timer(0)
        self._alarm_at = float("inf")
        self.reader: gevent.Greenlet[[], None] | None = None
        """The greenlet that `start` has made."""
        self._resume: Callable[[], object] | None = None
        self._ended: Callable[[], None] | None = None
        self._reader_waits = False
        self._session_waits = session_waits
        self._busy_poll = busy_poll
        self._tick = LoopTick(hub.loop) if tick is None else tick
        self._in_loop = not session_waits  # whether the watcher's callback reads, and not the greenlet
        self._needs_reader = False  # the callback has read, and the greenlet must continue
        self._received = b""  # the callback has read this for the greenlet
        self._watching = False
        self._flush_is_due = False
        self._writer: gevent.Greenlet[[list[memoryview]], None] | None = None
        self._writable: Any = None
        """What the writer waits with."""
        self._make_tls = make_tls
        self._receive_size = receive_size
        self._expects_small_read = False
        self._tls: Tls | None = None
        self._compression: Codec | None = None
        self._pieces: Iterator[bytes] | None = None  # of one read, still to be fed to the session
        self._encode: Callable[[bytes], bytes] | None = None
        self._input_ended = False  # EOF or an error was read
        self._is_shut = False  # our side is shut down; received bytes are dropped
        self._is_closed = False
        self.session = make_session(self, _monotonic(), _time_ns())

    # --- The reader ---------------------------------------------------------------------------------------------------

    def start(self, ended: Callable[[], None]) -> None:
        """Serve the connection until either side closes it, and then call `ended`."""
        self._ended = ended
        if self._session_waits:
            self._make_reader()
            return
        self._reader_waits = True
        self._resume = self._resume_without_reader
        self._set_alarm()
        self._watch()

    def _make_reader(self) -> None:
        self.reader = gevent.spawn(self.run)
        # Also if it is killed before its first step.
        self.reader.link(self._on_reader_end)

    def _on_reader_end(self, reader: object) -> None:
        ended, self._ended, self.reader = self._ended, None, None
        try:
            self.free()
        finally:
            if ended is not None:
                ended()

    def _resume_without_reader(self) -> None:
        """Stands for the greenlet until there is one. Runs in the hub."""
        if self._is_closed:
            self._on_reader_end(None)
        elif self._needs_reader:
            self._make_reader()
        else:
            self._reader_waits = True

    def run(self, *, begins_handshake: bool = False) -> None:
        """Serve the connection until either side closes it.

        With `begins_handshake` this side begins the handshake of the TLS with which the session starts.
        """
        self._resume = gevent.getcurrent().switch
        try:
            if self._needs_reader:
                self._read_in_greenlet()  # what the callback has left
            else:
                self._set_alarm()
            if begins_handshake:
                self._prepare_next_read()
            self._read_loop()
        except Exception as error:
            self._fail(error)
        finally:
            self.free()

    def _read_loop(self) -> None:
        while self._wait_readable():
            self._read_in_greenlet()

    def _read_in_greenlet(self) -> None:
        if self._needs_reader:
            self._needs_reader = False
        elif self._received:
            self._feed_received()
        else:
            self._read()
        if self._writer is not None or self.session.has_unread or self.session.upgrade is not None:
            self._prepare_next_read()

    def _read(self) -> None:
        """Receive once, feed the session, and send its replies, or schedule them after the messages."""
        try:
            data = self._receive_available()
        except BlockingIOError:
            return
        except OSError as error:
            self._end_input(partial(self._fail, error))
            return
        if not data:
            self._end_input(self._on_eof)
            return
        session = self.session
        if self._encode is None:
            now_ns = _time_ns()
            session.receive_data(data, _monotonic(), now_ns)
        elif self._in_loop and self._tls is not None:
            self._decode_tls(self._tls, data)
        else:
            self._decode(self._plain(data, self._tls))
        has_answered = False
        if not session.awaits_publish:
            if (self._tick.due or self._compression is not None) and session.upgrade is None:
                self.wake()
            else:
                has_answered = self.flush()
        busy_poll = self._busy_poll
        if busy_poll is not None and (has_answered or busy_poll.is_fixed):
            busy_poll.served(id(self))

    def _end_input(self, act: Callable[[], None]) -> None:
        """Stop reading and call `act`, in a later iteration if many other connections end in this one."""
        if not self._input_ended:
            self._input_ended = True
            self._stop_watching()
            if endings().take_slot():
                act()
            elif gevent.getcurrent() is self._hub:
                endings().call(act)
            else:
                endings().wait()  # the session may wait in `act`, which the hub cannot
                act()

    def _on_eof(self) -> None:
        try:
            if not self._is_closed:
                self.session.end_of_input()
                self.flush()
                if self._is_shut:
                    self.abort()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._fail(error)

    def _receive_available(self) -> bytes:
        """The received bytes, b"" at EOF. Raises ``BlockingIOError``."""
        # Hot: runs for every synchronous PUB. A small read is expected to be followed by another small one.
        if not self._expects_small_read:
            data = self._recv(self._receive_size)
        else:
            data = self._recv(SMALL_READ)
            if len(data) == SMALL_READ:
                with contextlib.suppress(OSError):  # nothing more yet, or an error, which the next read reports
                    data += self._recv(self._receive_size - SMALL_READ)
        self._expects_small_read = len(data) < SMALL_READ < self._receive_size
        return data

    def _on_readable(self) -> None:
        """Read in the event loop if possible, which saves switching to the greenlet and back."""
        # Hot: runs for every synchronous PUB, with the calls of `LoopTick` written out.
        if not self._reader_waits:
            self._stop_watching()
            return
        tick, now = self._tick, _monotonic()
        if not tick.reads.has_time(now):
            self._readable.stop()
            tick.reads.add(self.client, self._read_in_turn)
            return
        self._read_now(tick)
        if tick.due or tick.calls:
            tick.run()

    def _read_in_turn(self) -> None:
        """Read what was put off, unless the reader waits for something else meanwhile."""
        if self._is_closed:
            return
        if not (self._watching and self._reader_waits):
            self._stop_watching()  # so that the reader starts it again
            return
        tick = self._tick
        self._readable.start(self._on_readable)
        self._read_now(tick)
        if tick.due or tick.calls:
            tick.schedule()

    def _read_now(self, tick: LoopTick) -> None:
        tick.is_reading = True
        try:
            if not self._in_loop:
                if not self._read_at_once():
                    self._resume_reader()
            else:
                self._read()
                if self._writer is not None or self.session.has_unread or self.session.upgrade is not None:
                    self._needs_reader = True
                    self._resume_reader()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._fail(error)
        finally:
            tick.is_reading = False

    def _read_at_once(self) -> bool:
        """Read in the event loop although the session may wait; return whether the greenlet is not needed."""
        session = self.session
        if not session.reads_at_once or self._encode is not None or self._writer is not None:
            return False
        if session.upgrade is not None:
            return False  # the greenlet reads the handshake
        try:
            data = self._receive_available()
        except BlockingIOError:
            return True
        except OSError as error:
            self._end_input(partial(self._fail, error))
            return True
        now_ns = _time_ns()
        if not data or not session.receive_at_once(data, _monotonic(), now_ns):
            self._received = data
            return False
        self._answer()
        return True

    def _feed_received(self) -> None:
        """Feed the session what the callback of the watcher has read."""
        data, self._received = self._received, b""
        now_ns = _time_ns()
        self.session.receive_data(data, _monotonic(), now_ns)
        self._answer()

    def _answer(self) -> None:
        """Send the replies to what was read, or schedule them after the messages."""
        if not self.session.awaits_publish:
            if self._tick.due and self.session.upgrade is None:
                self.wake()
            else:
                self.flush()
        if self._busy_poll is not None and self._busy_poll.is_fixed:
            self._busy_poll.served(id(self))

    def _prepare_next_read(self) -> None:
        """Before reading on, execute all received commands, apply back-pressure, and perform pending upgrades."""
        self._execute_unread()
        self._apply_back_pressure()
        if self.session.upgrade is not None:
            self._in_loop = False  # the greenlet reads the handshake
            self._push_codecs()
            # Few bytes may inflate to many, so the greenlet decodes them, and others run in between.
            self._in_loop = not self._session_waits and self._compression is None

    def _execute_unread(self) -> None:
        session = self.session
        while (session.has_unread or self._pieces is not None) and self._yield_to_loop():
            if session.has_unread:
                now_ns = _time_ns()
                session.read_on(_monotonic(), now_ns)
            elif self._pieces is not None:  # the session may have been closed while this waited
                self._feed_pieces()
            self.flush()
            self._apply_back_pressure()

    def _yield_to_loop(self) -> bool:
        """Let other connections run; return whether this one is still open."""
        self._stop_watching()
        if not self._is_closed:
            yield_to_loop(self.client)
        return not self._is_closed

    @property
    def client(self) -> str:
        """The network of the client; long work for it is done in the turns of that."""
        if self._client is None:
            self._client = network_of_peer(self.peer)
        return self._client

    def _apply_back_pressure(self) -> None:
        owed = self.session.owed_replies + (self._tls.pending if self._tls is not None else 0)
        if owed > MAX_OWED_REPLIES:
            self._wait_for_writer()

    def _wait_readable(self) -> bool:
        """Wait until there is something to read; return whether the connection is still open."""
        # Waiting before reading saves a system call that would fail, and keeping the watcher started saves two more.
        # The watcher is level-triggered. If it fires while the greenlet waits for something else, it is stopped.
        if not self._is_closed:
            self._watch()
            self._switch_to_hub()
        return not self._is_closed

    def _watch(self) -> None:
        if not self._watching and not self._input_ended:
            self._watching = True
            self._readable.start(self._on_readable)

    def _stop_watching(self) -> None:
        self._watching = False
        self._readable.stop()

    def _wait_for_writer(self) -> None:
        self._stop_watching()
        while self._writer is not None and not self._is_closed:
            self._switch_to_hub()

    def _switch_to_hub(self) -> None:
        self._reader_waits = True
        self._hub.switch()

    def _resume_reader(self) -> None:
        if self._reader_waits and self._resume is not None:
            self._reader_waits = False
            self._resume()

    # --- Codecs -------------------------------------------------------------------------------------------------------

    def _plain(self, data: bytes, tls: Tls | None) -> Iterator[bytes]:
        """The plain bytes in `data`, with or without TLS, in pieces (see ``Codec.decode``).

        A compression that is pushed between two pieces decodes the second.
        """
        received: Iterable[bytes] = (data,) if data else ()
        for piece in received if tls is None else tls.decode(data):
            if piece and self._compression is not None:
                yield from self._compression.decode(piece)
            else:
                yield piece  # plain bytes, or EOF

    def _decode(self, pieces: Iterable[bytes]) -> None:
        """Feed the session in pieces, each answered before the next is decoded; other connections run in between."""
        try:
            for number, piece in enumerate(pieces):
                if number:
                    yield_to_loop(self.client)
                if self.session.closing or self._is_closed:
                    return
                self._feed(piece)
                if number or self.session.upgrade is not None:
                    self.flush()
                else:
                    self._flush_in_time()
                self._prepare_next_read()
        except (CompressionError, TlsError) as error:
            self._stop_decoding(error)

    def _decode_tls(self, tls: Tls, data: bytes) -> None:
        """Decrypt `data`, which has no compression above TLS and therefore does not grow, and feed the session."""
        try:
            pieces = tls.decode(data)
        except TlsError as error:
            self._stop_decoding(error)
            return
        if type(pieces) is tuple:  # Hot: one record, or none
            for piece in pieces:
                self._feed(piece)
        else:
            self._pieces = iter(pieces)
            self._feed_pieces()

    def _feed_pieces(self) -> None:
        """Feed the session the decrypted pieces of one read, until it leaves commands unread."""
        assert self._pieces is not None, "there are pieces"
        try:
            for piece in self._pieces:
                self._feed(piece)
                if self.session.has_unread:
                    return
        except TlsError as error:
            self._stop_decoding(error)
        self._pieces = None

    def _feed(self, piece: bytes) -> None:
        if piece:
            now_ns = _time_ns()
            self.session.receive_data(piece, _monotonic(), now_ns)
        else:
            self.session.end_of_input()

    def _stop_decoding(self, error: Exception) -> None:
        """End the input, because nothing after a damaged TLS record or compressed block can be decoded."""
        if not self.session.input_failed(str(error)):
            log.error("client(%s) - failed to read command - %s", self.peer, error)
            self.session.end_of_input()

    def _push_codecs(self) -> None:
        """Perform the upgrades that the session requests, then decode bytes already received for the new codecs."""
        tls_before, received = self._tls, b""
        while (upgrade := self.session.upgrade) is not None and not self._is_closed:
            if self._writer is not None:
                self._wait_for_writer()
                continue  # the upgrade may have timed out meanwhile
            if upgrade.codec is not None:
                received += upgrade.received
                self._compression = upgrade.codec
                self._encode = _encode_with(upgrade.codec, self._tls)
                upgrade.done(None, _monotonic())
            elif (tls := self._do_handshake(upgrade)) is not None:
                self._tls, self._encode = tls, tls.encode
                upgrade.done(tls.facts(), _monotonic())
            else:
                return
            self.flush()
        if self._encode is not None:
            self._decode(self._plain(received, self._tls if tls_before is None else None))

    def _do_handshake(self, upgrade: Upgrade) -> Tls | None:
        """Return TLS after its handshake, None if that fails. Until then replies are sent unencrypted (nsqd)."""
        assert self._make_tls is not None, "a session offers TLS only if there is a certificate"
        tls, received = self._make_tls(), upgrade.received
        try:
            while self._has_handshake_turn() and not tls.do_handshake(received):
                self._send_after_writer(tls.encode(b""))
                received = self._receive()
                if not received:
                    self.session.end_of_input()
                if self.session.closing:
                    return None
        except TlsError as error:
            self._send_after_writer(tls.encode(b""))  # the alert
            if not self.session.closing:
                upgrade.failed(str(error))
            self.flush()
            return None
        self._send_after_writer(tls.encode(b""))
        # The session may have timed out, or the connection have been aborted, while this waited.
        return None if self.session.closing or self._is_closed else tls

    def _has_handshake_turn(self) -> bool:
        """Wait until this iteration has time for a step; return whether the connection is still open."""
        if not handshakes().has_time(_monotonic()):
            self._stop_watching()
            handshakes().wait(self.client)
        return not self._is_closed and not self.session.closing

    def _receive(self) -> bytes:
        """Wait for bytes; b"" at EOF or once the connection is closed."""
        while self._wait_readable():
            with contextlib.suppress(BlockingIOError):
                return self._recv(RECEIVE_SIZE)
        return b""

    def _send_after_writer(self, data: bytes) -> None:
        self._wait_for_writer()
        if data and not self._is_closed:
            self._send_now(data)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Flush at the end of this event-loop iteration, because the session may have something to send."""
        if not self._flush_is_due and not self._is_closed:
            self._flush_is_due = True
            tick = self._tick
            tick.due.append(self)
            if not tick.is_reading:
                tick.schedule()

    def flush_when_due(self) -> None:
        """`flush` as the last step of an iteration: an error must not reach other connections."""
        self._flush_is_due = False
        try:
            self.flush()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._fail(error)

    def _flush_in_time(self) -> None:
        """Flush now if this iteration has time for it, and otherwise in the turn of the client.

        Compressing may take long, and hundreds of connections may have something to send.
        """
        if self._tick.flushes.has_time(_monotonic()):
            self._tick.flush([self])
        else:
            self.wake()

    def flush(self) -> bool:
        """Send one batch of what the session has; the next batch follows in the next iteration.

        Returns whether anything was sent.
        """
        if self._writer is not None or self._is_closed or self._is_shut:
            return False
        session = self.session
        data = session.data_to_send(_monotonic())
        if self._encode is not None:
            data = self._encode(data if isinstance(data, bytes) else b"".join(data))
        if isinstance(data, bytes):
            if data:
                self._send_now(data)
        else:
            self._send_pieces(data)
        if session.closing:
            if not self._is_writing():
                self._shut()
            return False
        if session.has_more:
            self.wake()  # other connections are served first
        if self._alarm_at > session.next_wakeup:
            self._set_alarm()
        return bool(data)

    def _is_writing(self) -> bool:
        # A method, because mypy narrows `_writer` to None in `flush`, and compiled code relies on that.
        return self._writer is not None

    def _send_now(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._writer = gevent.spawn(self._write_loop, [memoryview(data)[sent:]])

    def _send_pieces(self, pieces: list[bytes]) -> None:
        """As `_send_now`, without joining the pieces."""
        try:
            sent = self._socket.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        if owed := _unsent(pieces, sent):
            self._writer = gevent.spawn(self._write_loop, owed)

    def _write_loop(self, owed: list[memoryview]) -> None:
        """The writer: send `owed`, as fast as the socket accepts it."""
        self.session.stalled()
        session, began, sent = self.session, _monotonic(), 0
        writable = self._writable = self._hub.loop.io(self._socket.fileno(), _WRITE)
        try:
            while owed:
                seconds = session.write_timeout
                if seconds is not None:  # sent bytes extend it, at the slowest accepted rate
                    seconds = max(0.0, began + seconds + sent / session.slowest_rate - _monotonic())
                with gevent.Timeout(seconds, TimeoutError("write timeout")):
                    self._hub.wait(writable)
                with contextlib.suppress(BlockingIOError):
                    accepted = self._socket.sendmsg(owed)
                    owed = _unsent(owed, accepted)
                    sent += accepted
        except OSError as error:
            self._fail(error)
        finally:
            writable.close()
            self._writable = self._writer = None
        self._flush_in_time()
        self._hub.loop.run_callback(self._resume_reader)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        self._alarm.stop()
        self._alarm_at = _monotonic() + self.session.linger_seconds if self._is_shut else self.session.next_wakeup
        if self._alarm_at != float("inf"):
            self._alarm.close()
            self._alarm = self._hub.loop.timer(max(0.0, self._alarm_at - _monotonic()))
            self._alarm.start(self._on_alarm)

    def _on_alarm(self) -> None:
        if self._is_shut:
            self.abort()
        self._alarm_at = float("inf")
        self._flush_in_time()

    # --- The end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close after the received bytes have been read and all replies sent."""
        with contextlib.suppress(OSError):  # the client has closed it already
            self._socket.shutdown(socket.SHUT_RD)

    def peer_is_gone(self) -> bool:
        """Whether the other side has closed the connection or its sending side, even behind bytes that are unread."""
        if self._is_closed or self._input_ended:
            return True
        poll = _poll()
        poll.register(self._socket, select.POLLRDHUP)  # errors and resets are reported in any case
        return len(poll.poll(0)) > 0

    def abort(self) -> None:
        """Close at once, and drop unsent replies."""
        if not self._is_closed:
            self._is_closed = True
            endings().call(self._resume_reader)

    def _shut(self) -> None:
        """Shut our side down after everything is sent. Drop received bytes until the client closes or time is up."""
        self._is_shut = True
        self.session.closed()
        if self._input_ended:
            self.abort()
            return
        with contextlib.suppress(OSError):  # the client has closed it already
            self._socket.shutdown(socket.SHUT_WR)
        self._set_alarm()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, (OSError, TlsError)):
            why = reason(error) if isinstance(error, OSError) else str(error)
            log.log(self.session.lost_level, "%s(%s) - %s", self.actor, self.peer, why)
        else:
            log.error("%s(%s) - internal error", self.actor, self.peer, exc_info=error)
        self.abort()

    def free(self) -> None:
        """Release the socket after `run` has returned, or if it was never called. May be called twice."""
        if self._socket.fileno() < 0:
            return
        self._is_closed = True
        self._resume = None
        self._readable.close()
        self._alarm.close()
        if self._writable is not None:
            self._writable.close()  # before the socket: libev aborts the process if it finds a closed descriptor
        if self._writer is not None:
            self._writer.kill(block=False)  # which takes effect later
        self._socket.close()
        self.session.closed()
        self.session.freed()
        self._tls = self._compression = self._pieces = self._encode = None
