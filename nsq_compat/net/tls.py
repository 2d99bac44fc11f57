"""TLS as a codec: bytes of the wire on one side, plain bytes on the other. No socket, so whoever owns one waits as it
likes.

`Tls` is the server's side of one connection: it is fed until the hands are shaken, and from then on encodes and decodes
like a compression. `StandardTls` does it with the standard library; `tls_lenient` has the other one.

nsqd never says goodbye (close_notify), and so do we not: what a client is told ends with the connection.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from nsq_compat.net.tls_words import TlsError, failure, suite_name, version_name
from nsq_compat.protocol.compression import MAX_PIECE
from nsq_compat.session.upgrade import TlsFacts

_READ_SIZE: Final = 1 << 14  # the plain bytes of one record


class Tls:
    """One connection's TLS, the server's side; a ``Codec``. ``TlsError`` is what all of it raises."""

    def shake_hands(self, data: bytes) -> bool:
        """Take what was received; true when the handshake is complete."""
        raise NotImplementedError

    def encode(self, data: bytes) -> bytes:
        """To send. Also what TLS itself has to say, answers to the handshake and alerts: call it, if need be with
        nothing, after whatever was received. Once something was refused there is nothing else.
        """
        raise NotImplementedError

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterable[bytes]:
        """As ``Codec.decode``."""
        raise NotImplementedError

    @property
    def owed(self) -> int:
        """Bytes of its own that TLS has to say."""
        raise NotImplementedError

    def facts(self) -> TlsFacts:
        """Once the handshake is complete."""
        raise NotImplementedError


MakeTls = Callable[[], Tls]


class StandardTls(Tls):
    """By the standard library."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # Hot: the methods of `SSLObject` with these names only call these.
        inner: Any = self._tls._sslobj  # type: ignore[attr-defined]
        self._read_plain: Callable[[int], bytes] = inner.read
        self._write_plain: Callable[[bytes], int] = inner.write
        self._refused = False

    def shake_hands(self, data: bytes) -> bool:
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._refusal(error) from None
        return True

    def encode(self, data: bytes) -> bytes:
        if data and not self._refused:
            try:
                self._write_plain(data)  # to memory, which takes all of it
            except ssl.SSLError as error:
                raise self._refusal(error) from None
        return self._outgoing.read()

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterable[bytes]:
        # Hot: a client that awaits each answer sends one record at a time, which needs no generator and no second read.
        self._incoming.write(data)
        size = len(data)
        if 0 < size < limit:
            try:
                record = self._read_plain(size)
            except ssl.SSLWantReadError:
                return ()
            except ssl.SSLError as error:
                raise self._refusal(error) from None
            if not record or (len(record) < size and not self._incoming.pending):
                return (record,)
            return self._decode(limit, record)
        return self._decode(limit, b"")

    def _decode(self, limit: int, record: bytes) -> Iterator[bytes]:
        """What follows this record, and it before."""
        records = [record] if record else []
        size = len(record)
        refusal: TlsError | None = None
        try:
            # Asked only while there is something: the last read of each turn would raise, and cost more than the rest.
            while self._incoming.pending or self._tls.pending():
                following = self._read(_READ_SIZE)
                if following is None:
                    break
                if size and (not following or size + len(following) > limit):
                    yield b"".join(records)
                    records.clear()
                    size = 0
                records.append(following)
                size += len(following)
                if not following:
                    break
        except TlsError as error:
            refusal = error
        if records:
            yield records[0] if len(records) == 1 else b"".join(records)
        if refusal is not None:
            raise refusal

    def _read(self, size: int) -> bytes | None:
        """Of one record; b"" is the end, None that there is none yet."""
        try:
            return self._read_plain(size)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise self._refusal(error) from None

    @property
    def owed(self) -> int:
        return self._outgoing.pending

    def facts(self) -> TlsFacts:
        cipher = self._tls.cipher()
        return TlsFacts(version_name(self._tls.version()), suite_name(cipher[0] if cipher else ""), self._common_name())

    def _common_name(self) -> str:
        subject: Any = (self._tls.getpeercert() or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        return names[-1] if names else ""

    def _refusal(self, error: ssl.SSLError) -> TlsError:
        self._refused = True
        return TlsError(failure(error.reason or str(error), getattr(error, "verify_message", "")))
