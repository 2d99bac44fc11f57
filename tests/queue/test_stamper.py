"""Bodies become frames, the same whether somebody knows that they are of one size or not."""

import pytest

from nsq_compat.protocol.alike import Alike
from nsq_compat.protocol.message import HEADER_SIZE, message_id
from nsq_compat.queue.stamper import Stamper

NOW_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize("count", [1, 2, 200, 5000], ids="{} messages".format)
@pytest.mark.parametrize("size", [4, 200, 5000])
def test_bodies_alike_become_the_frames_of_any_bodies(count, size):
    bodies = [b"%04d" % number * (size // 4) for number in range(count)]
    frames, joined, total = Stamper(7).stamp(Alike(bodies), NOW_NS)
    assert (frames, total) == (Stamper(7).stamp(bodies, NOW_NS)[0], count * size)
    assert joined == (b"".join(frames) if count > 1 else b"")  # a lone one is made as any other
    ids = [message_id(frame) for frame in frames]
    assert ids == sorted(set(ids))


def test_of_other_bodies_the_bytes_are_counted_and_nothing_is_joined():
    frames, joined, total = Stamper(0).stamp([b"a", b"bcd", b""], NOW_NS)
    assert ([len(frame) - HEADER_SIZE for frame in frames], joined, total) == ([1, 3, 0], b"", 4)


def test_ids_grow_from_one_call_to_the_next():
    stamper = Stamper(0)
    ids = [message_id(frame) for _ in range(3) for frame in stamper.stamp(Alike([b"a", b"b"]), NOW_NS)[0]]
    ids += [message_id(frame) for frame in stamper.stamp([b"c"], NOW_NS)[0]]
    assert ids == sorted(set(ids))
    assert stamper.ids.last == ids[-1]
