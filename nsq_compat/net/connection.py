"""One TCP client: a socket, a greenlet that reads, and the session between them.

How it works. The read loop waits for readability (a watcher that stays with the connection), receives, feeds the
session and flushes; what a session has posted, to be published with what others have, it answers at the end of the
turn. Where a session never waits the watcher's callback does all that in the event loop, and the greenlet is woken only
for what takes time: an upgrade, bytes that inflate, a client that does not take its replies. `flush` sends without
waiting; it also runs at the end of a turn of the event loop when a session has something to send that nobody just asked
it for, so what a turn produces leaves in one system call and an idle consumer needs no second greenlet. Messages leave
before the OK of who published them: a consumer waits for nothing else. What the socket does not take becomes the
business of a write loop, a greenlet that lives as long as something is owed.

Between socket and session there may be codecs: TLS, a compression. The read loop puts on what the session's `upgrade`
asks for as soon as nothing is owed. A plain connection has none and pays nothing for it.

Invariants:

- *One writer at a time.* While the write loop owes bytes, nobody else sends.
- Only the write loop waits for a socket to take bytes, and never longer than the session's write
  timeout, plus what the slowest link we put up with takes.
- The read loop goes on while messages are owed, because a client may be busy sending FINs and not read until they are
  out; it pauses when more than `MAX_OWED_REPLIES` bytes of replies wait, because such a client does not read them.
- What a client is told last it gets to read: after a fatal error only our side is shut, and what the client still sends
  is dropped for a moment. Closing at once would make the kernel reset the connection and lose the error frame.
- Bytes that inflate are taken by the piece: each is answered before the next is made, and others run in between.
- A session that has more to do than it does at once (`has_unread`) is called again and again by the greenlet, and
  others run in between; nothing is read from the socket meanwhile.
- However many clients leave at once, few of them are seen off in one iteration of the event loop (`Endings`).
- Nothing a client sends or omits ends anything but its own connection.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Generic, TypeVar

import gevent

from nsq_compat.net.long_work import endings, let_others_run
from nsq_compat.net.loop_tick import LoopTick
from nsq_compat.net.tls import MakeTls, Tls, TlsError
from nsq_compat.net.vigil import Vigil
from nsq_compat.protocol.compression import Codec, CompressionError
from nsq_compat.session.conversation import Conversation, Upgrade

log = logging.getLogger(__name__)


class CodecStack:
    """Grows while a connection lives, even while what came before is being decoded."""

    def __init__(self) -> None:
        self._codecs: list[Codec] = []

    def __len__(self) -> int:
        return len(self._codecs)

    def put_on(self, codec: Codec) -> None:
        self._codecs.append(codec)

    def encode(self, data: bytes) -> bytes:
        """What to send for `data`; with none, what the codecs themselves have to say."""
        for codec in reversed(self._codecs):
            data = codec.encode(data)
        return data

    def decode(self, data: bytes, level: int = 0) -> Iterator[bytes]:
        """The plain bytes in what was received below `level`, in pieces (see ``Codec.decode``).

        A codec that is put on between two pieces gets the second.
        """
        if level == len(self._codecs):
            yield data
            return
        for piece in self._codecs[level].decode(data):
            if piece and level + 1 < len(self._codecs):
                yield from self.decode(piece, level + 1)
            else:
                yield piece  # plain, or the end whatever lies above


Session = TypeVar("Session", bound=Conversation)

RECEIVE_SIZE: Final = 64 * 1024
"""From 128 KiB on, the buffer made for every read costs more than the read (measured: 16.7 us against 2.6 us)."""
FEW: Final = 479
"""Bytes that most requests are no longer than; Python makes a buffer for so many without asking malloc."""
MAX_OWED_REPLIES: Final = 64 * 1024
_READ: Final = 1
_WRITE: Final = 2
_monotonic: Final = time.monotonic
_time_ns: Final = time.time_ns


class Connection(Generic[Session]):
    """Made by the server for every accepted socket, which it owns from then on.

    `run` is the read loop and returns when the connection is over. `abort` closes it from outside, at any time.
    `session_waits` says whether `receive_data` may let others run. `vigil` hears of each command that was
    answered, and not of every part of one. Those who share a `tick` send in the order in which they have something.
    """

    actor = "client"
    """Who is at the other end, in log lines."""

    def __init__(
        self,
        client: socket.socket,
        peer: str,
        make_session: Callable[["Connection[Session]", float, int], Session],
        make_tls: MakeTls | None = None,
        receive_size: int = RECEIVE_SIZE,
        *,
        session_waits: bool = True,
        vigil: Vigil | None = None,
        tick: LoopTick | None = None,
    ) -> None:
        client.setblocking(False)
        hub = gevent.get_hub()
        self.peer = peer
        self._hub = hub
        self._socket = client
        self._recv = client.recv
        self._send = client.send
        self._readable = hub.loop.io(client.fileno(), _READ)
        self._alarm = hub.loop.timer(0)
        self._alarm_at = float("inf")
        self._resume: Callable[[], object] | None = None
        self._reader_waits = False
        self._session_waits = session_waits
        self._vigil = vigil
        self._tick = LoopTick(hub.loop) if tick is None else tick
        self._in_place = not session_waits  # whether the watcher's callback reads, and not the greenlet
        self._unsettled = False  # it has, and left something to the greenlet
        self._watching = False
        self._flush_is_due = False
        self._writer: gevent.Greenlet[[memoryview], None] | None = None
        self._make_tls = make_tls
        self._receive_size = receive_size
        self._expects_few = False
        self._tls: Tls | None = None
        self._codecs: CodecStack | None = None
        self._pieces: Iterator[bytes] | None = None  # of one read, still to be fed to the session
        self._encode: Callable[[bytes], bytes] | None = None
        self._input_ended = False  # the client sends no more
        self._hung_up = False
        self._over = False
        self.session = make_session(self, _monotonic(), _time_ns())

    # --- The read loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the client until either side ends it."""
        self._resume = gevent.getcurrent().switch
        try:
            self._set_alarm()
            self._read_loop()
        except Exception as error:
            self._lose(error)
        finally:
            self.release()

    def _read_loop(self) -> None:
        while self._wait_readable():
            if self._unsettled:
                self._unsettled = False
            else:
                self._read()
            if self._writer is not None or self.session.has_unread or self.session.upgrade is not None:
                self._settle()

    def _read(self) -> None:
        """Serve what one read brings."""
        try:
            data = self._receive_what_came()
        except BlockingIOError:
            return
        except OSError as error:
            self._end_input(partial(self._lose, error))
            return
        if not data:
            self._end_input(self._on_end_of_input)
            return
        session, codecs = self.session, self._codecs
        if codecs is None:
            session.receive_data(data, _monotonic(), _time_ns())
        elif self._in_place and self._tls is not None:
            self._decode_tls(self._tls, data)
        else:
            self._decode(codecs, data)
        answered = session.posted is None
        if answered:
            self._answer()
        vigil = self._vigil
        if vigil is not None and (vigil.patient or (answered and not session.amid_command)):
            vigil.served()

    def _end_input(self, act: Callable[[], None]) -> None:
        """Nothing more is read; `act` is called now, or later if many others have just ended."""
        if not self._input_ended:
            self._input_ended = True
            self._stop_watching()
            if endings().may_go_first():
                act()
            else:
                endings().call(act)

    def _on_end_of_input(self) -> None:
        try:
            if not self._over:
                self.session.end_of_input()
                if self.session.posted is None:
                    self.flush()
                if self._hung_up:
                    self.abort()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._lose(error)

    def _receive_what_came(self) -> bytes:
        """Raises ``BlockingIOError``; at the end of the stream nothing."""
        # Hot: runs for every synchronous PUB. A short read is expected to be followed by another short one.
        if not self._expects_few:
            data = self._recv(self._receive_size)
        else:
            data = self._recv(FEW)
            if len(data) == FEW:
                with contextlib.suppress(OSError):  # that was all, for now or for ever
                    data += self._recv(self._receive_size - FEW)
        self._expects_few = len(data) < FEW < self._receive_size
        return data

    def _answer(self) -> None:
        """Send the replies to it; behind the messages it brought, if nothing waits for them to be out."""
        if self._tick.due and self.session.upgrade is None:
            self.wake()
        else:
            self.flush()

    def _on_readable(self) -> None:
        """The same in the event loop, if it can be, which saves switching to the greenlet and back."""
        # Hot: runs for every synchronous PUB.
        if not self._reader_waits:
            self._stop_watching()
            return
        self._tick.begin_reading()
        try:
            if not self._in_place:
                self._resume_reader()
            else:
                self._read()
                if self._writer is not None or self.session.has_unread or self.session.upgrade is not None:
                    self._unsettled = True
                    self._resume_reader()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._lose(error)
        finally:
            self._tick.end_reading()

    def _settle(self) -> None:
        """Before more is read: what was received is executed, the client takes its replies, and upgrades are made."""
        self._finish_reading()
        self._wait_for_replies_to_be_taken()
        if self.session.upgrade is not None:
            self._in_place = False  # what comes now is for whoever shakes hands
            self._put_on_codecs()
            only_tls = self._codecs is None or (self._tls is not None and len(self._codecs) == 1)
            self._in_place = not self._session_waits and only_tls  # a compression makes much of little: in turns

    def _finish_reading(self) -> None:
        """Execute what was received and was too much to be executed at once; others run in between."""
        session = self.session
        while (session.has_unread or self._pieces is not None) and self._has_its_turn():
            if session.has_unread:
                session.read_on(_monotonic(), _time_ns())
            else:
                self._feed_pieces()
            self.flush()
            self._wait_for_replies_to_be_taken()

    def _has_its_turn(self) -> bool:
        """Once others had theirs; false when the connection is over."""
        if self._watching:
            self._stop_watching()
        if not self._over:
            let_others_run()
        return not self._over

    def _wait_for_replies_to_be_taken(self) -> None:
        owed = self.session.owed_replies + (self._tls.owed if self._tls is not None else 0)
        if owed > MAX_OWED_REPLIES:
            self._wait_until_paid()

    def _wait_readable(self) -> bool:
        """False when there is nothing to wait for any more."""
        # Waiting before reading saves the system call that would fail; a watcher that is kept saves two more. It is
        # level-triggered: when it fires while the greenlet waits elsewhere it is stopped.
        if not self._over:
            if not self._watching and not self._input_ended:
                self._watching = True
                self._readable.start(self._on_readable)
            self._switch_to_hub()
        return not self._over

    def _stop_watching(self) -> None:
        self._watching = False
        self._readable.stop()

    def _wait_until_paid(self) -> None:
        """Until nobody else is sending."""
        if self._watching:
            self._stop_watching()
        while self._writer is not None and not self._over:
            self._switch_to_hub()

    def _switch_to_hub(self) -> None:
        self._reader_waits = True
        self._hub.switch()

    def _resume_reader(self) -> None:
        if self._reader_waits and self._resume is not None:
            self._reader_waits = False
            self._resume()

    # --- Codecs -------------------------------------------------------------------------------------------------------

    def _decode(self, codecs: CodecStack, data: bytes, level: int = 0) -> None:
        """Feed the session by the piece, each answered before the next is made; others run in between."""
        try:
            for number, piece in enumerate(codecs.decode(data, level)):
                if number:
                    let_others_run()
                if self.session.closing or self._over:
                    return
                self._feed(piece)
                self.flush()
                self._settle()
        except (CompressionError, TlsError) as error:
            self._lose_thread(error)

    def _decode_tls(self, tls: Tls, data: bytes) -> None:
        """The same where there is nothing but TLS, which makes no more of what was received."""
        try:
            pieces = tls.decode(data)
        except TlsError as error:
            self._lose_thread(error)
            return
        if type(pieces) is tuple:  # Hot: one record, or none
            for piece in pieces:
                self._feed(piece)
        else:
            self._pieces = iter(pieces)
            self._feed_pieces()

    def _feed_pieces(self) -> None:
        """What TLS made of one read, until the session has enough for now."""
        assert self._pieces is not None, "there are some"
        try:
            for piece in self._pieces:
                self._feed(piece)
                if self.session.has_unread:
                    return
        except TlsError as error:
            self._lose_thread(error)
        self._pieces = None

    def _feed(self, piece: bytes) -> None:
        if piece:
            self.session.receive_data(piece, _monotonic(), _time_ns())
        else:
            self.session.end_of_input()

    def _lose_thread(self, error: Exception) -> None:
        """What follows in the stream means nothing."""
        log.error("client(%s) - failed to read command - %s", self.peer, error)
        self.session.end_of_input()

    def _put_on_codecs(self) -> None:
        """Do what the session's `upgrade` asks for, then take what has come for the new codecs already."""
        codecs = self._codecs or CodecStack()
        level, received = len(codecs), b""
        while (upgrade := self.session.upgrade) is not None and not self._over:
            if self._writer is not None:
                self._wait_until_paid()
                continue  # meanwhile its time may have run out
            if upgrade.codec is not None:
                received += upgrade.received
                codecs.put_on(upgrade.codec)
                upgrade.done(None, _monotonic())
            elif (tls := self._shake_hands(upgrade)) is not None:
                self._tls = tls
                codecs.put_on(tls)
                upgrade.done(tls.facts(), _monotonic())
            else:
                return
            self._codecs = codecs
            self._encode = codecs.encode if len(codecs) > 1 or self._tls is None else self._tls.encode
            self.flush()
        self._decode(codecs, received, level)

    def _shake_hands(self, upgrade: Upgrade) -> Tls | None:
        """None if it fails. Until it is over, what the session says goes out plain (nsqd: the error frame too)."""
        assert self._make_tls is not None, "a session offers TLS where there is some"
        tls, received = self._make_tls(), upgrade.received
        try:
            while not tls.shake_hands(received):
                self._send_after_others(tls.encode(b""))
                received = self._receive()
                if not received:
                    self.session.end_of_input()
                if self.session.closing:
                    return None
        except TlsError as error:
            self._send_after_others(tls.encode(b""))  # the alert
            if not self.session.closing:
                upgrade.failed(str(error))
            self.flush()
            return None
        self._send_after_others(tls.encode(b""))
        return None if self.session.closing else tls  # its time may have run out while that was sent

    def _receive(self) -> bytes:
        """Waits; nothing when there is no more."""
        while self._wait_readable():
            with contextlib.suppress(BlockingIOError):
                return self._recv(RECEIVE_SIZE)
        return b""

    def _send_after_others(self, data: bytes) -> None:
        self._wait_until_paid()
        if data and not self._over:
            self._send_now(data)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The session may have something to send: flush at the end of this turn of the event loop."""
        if not self._flush_is_due and not self._over:
            self._flush_is_due = True
            self._tick.add(self)

    def flush_when_due(self) -> None:
        """`flush` at the end of a turn: what goes wrong is this connection's alone."""
        self._flush_is_due = False
        try:
            self.flush()
        except Exception as error:  # the top of a callback, as `run` is the top of a greenlet
            self._lose(error)

    def flush(self) -> None:
        """Send what the session has, as far as the socket takes it; one batch, the rest in the next turn."""
        if self._writer is not None or self._over or self._hung_up:
            return
        session = self.session
        data = session.data_to_send(_monotonic())
        if self._encode is not None:
            data = self._encode(data)
        if data:
            self._send_now(data)
        if session.closing:
            if not self._is_writing():
                self._hang_up()
            return
        if session.has_more:
            self.wake()  # others have their turn first
        if self._alarm_at > session.next_wakeup():
            self._set_alarm()

    def _is_writing(self) -> bool:
        # A method: compiled code would take `_writer` for what it was before `_send_now`.
        return self._writer is not None

    def _send_now(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._writer = gevent.spawn(self._write_loop, memoryview(data)[sent:])

    def _write_loop(self, owed: memoryview) -> None:
        self.session.stalled()
        began, sent = _monotonic(), 0
        writable = self._hub.loop.io(self._socket.fileno(), _WRITE)
        try:
            while owed:
                with gevent.Timeout(self._patience(began, sent), TimeoutError("write timeout")):
                    self._hub.wait(writable)
                with contextlib.suppress(BlockingIOError):
                    accepted = self._send(owed)
                    owed = owed[accepted:]
                    sent += accepted
        except OSError as error:
            self._lose(error)
        finally:
            writable.stop()
            writable.close()
            self._writer = None
        self.flush_when_due()
        self._hub.loop.run_callback(self._resume_reader)

    def _patience(self, began: float, sent: int) -> float | None:
        """How long to wait for the socket once more: a slow link is no dead one, a byte now and then is."""
        timeout = self.session.write_timeout
        if timeout is None:
            return None
        return max(0.0, began + timeout + sent / self.session.slowest_rate - _monotonic())

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        self._alarm.stop()
        self._alarm_at = _monotonic() + self.session.linger_seconds if self._hung_up else self.session.next_wakeup()
        if self._alarm_at != float("inf"):
            self._alarm.close()
            self._alarm = self._hub.loop.timer(max(0.0, self._alarm_at - _monotonic()))
            self._alarm.start(self._on_alarm)

    def _on_alarm(self) -> None:
        if self._hung_up:
            self.abort()
        self._alarm_at = float("inf")
        self.flush_when_due()

    # --- The end ------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Close at once, whatever is owed."""
        if not self._over:
            self._over = True
            endings().call(self._resume_reader)

    def _hang_up(self) -> None:
        """All is said: shut our side, and drop what still comes until the client closes or has had its time."""
        self._hung_up = True
        self.session.closed()
        with contextlib.suppress(OSError):  # the client was quicker
            self._socket.shutdown(socket.SHUT_WR)
        if self._input_ended:
            self.abort()
        else:
            self._set_alarm()

    def _lose(self, error: Exception) -> None:
        if isinstance(error, OSError):
            log.log(self.session.lost_level, "%s(%s) - %s", self.actor, self.peer, error)
        else:
            log.error("%s(%s) - internal error", self.actor, self.peer, exc_info=error)
        self.abort()

    def stop_reading(self) -> None:
        """Read what has been received already, and then the end of the input."""
        with contextlib.suppress(OSError):  # the client was quicker
            self._socket.shutdown(socket.SHUT_RD)

    def release(self) -> None:
        """Close the socket, once `run` has ended or if it never began. May be called twice."""
        if self._socket.fileno() < 0:
            return
        self._over = True
        self._resume = None
        self._readable.stop()
        self._readable.close()
        self._alarm.stop()
        self._alarm.close()
        if self._writer is not None:
            self._writer.kill(block=False)
        self._socket.close()
        self.session.closed()
