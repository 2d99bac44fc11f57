"""Commands in wire form, for clients. ``command_reader`` reads them in nsqd.

Topic and channel names are not checked here (``names`` does); nsqd refuses illegal ones. Durations are whole
milliseconds.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from nsq_compat.protocol.headers import join_batch
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.protocol.layout import sized
from nsq_compat.protocol.schema import MAGIC_V2

MAGIC: Final[bytes] = MAGIC_V2.value
NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"


def identify(request: IdentifyRequest) -> bytes:
    return b"IDENTIFY\n" + sized(request.encode())


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def subscribe(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def ready(count: int) -> bytes:
    return b"RDY %d\n" % count


def finish(ids: Iterable[bytes]) -> bytes:
    """A FIN for each id."""
    return b"".join([b"FIN %s\n" % message_id for message_id in ids])


def requeue(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %s %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %s\n" % message_id


def publish(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def publish_deferred(topic: str, body: bytes, delay_ms: int) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + sized(body)


def publish_many(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB: a line and ``schema.MPUB_BODY``."""
    return f"MPUB {topic}\n".encode() + sized(join_batch(bodies))


def publish_with_headers(topic: str, payload: bytes, delay_ms: int = 0) -> bytes:
    """HPUB of a payload (``protocol.headers``)."""
    line = f"HPUB {topic} {delay_ms}\n" if delay_ms else f"HPUB {topic}\n"
    return line.encode() + sized(payload)


def publish_many_with_headers(topic: str, payloads: Sequence[bytes]) -> bytes:
    """HMPUB: a line and ``schema.HMPUB_BODY``."""
    return f"HMPUB {topic}\n".encode() + sized(join_batch(payloads))
