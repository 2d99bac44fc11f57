"""Sorting and finding message ids."""

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.reading import sorted_ids


@given(st.lists(st.integers(0, 30_000), max_size=50), st.sampled_from((1, 7, 4096)))
def test_ids_are_sorted_without_duplicates(numbers, repeats):
    ids = [b"%016x" % number for number in numbers] * repeats
    assert sorted_ids(iter(ids), lambda: None) == sorted(set(ids))


def test_sorting_many_ids_pauses_every_few_thousand():
    pauses: list[int] = []
    ids = [b"%016x" % (number * 7919 % 100_000) for number in range(100_000)]
    assert sorted_ids(ids, lambda: pauses.append(1)) == sorted(ids)
    assert len(pauses) > 40


def test_no_step_of_sorting_is_most_of_the_work():
    """Compiled, a generator expression is a list: merging 200,000 ids was one piece then."""
    ids = [b"%016x" % (number * 7919 % 200_000) for number in range(200_000)]
    moments = [time.thread_time()]
    sorted_ids(iter(ids), lambda: moments.append(time.thread_time()))
    moments.append(time.thread_time())
    assert max(end - begin for begin, end in pairwise(moments)) < (moments[-1] - moments[0]) / 4


def test_a_few_ids_are_sorted_without_a_pause():
    def pause() -> None:
        raise AssertionError("nothing to wait for")

    assert sorted_ids([b"2", b"1", b"2"], pause) == [b"1", b"2"]
