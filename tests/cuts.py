"""Input in pieces, for tests of split-invariance."""

from collections.abc import Iterable
from itertools import pairwise


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces, which may be empty, cut at each place, modulo its length."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]
