"""The codecs between a socket and its session, one upon the other: TLS next to the socket, a compression on top."""

from collections.abc import Iterator

from nsq_compat.protocol.compression import Codec


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
