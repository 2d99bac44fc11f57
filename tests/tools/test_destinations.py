"""Where messages go in each mode, while destinations fail, rest and come back."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.tools.destinations import FIRST_PENALTY, MAX_PENALTY, MODES, Destinations, EpsilonGreedy, HostPool


class Time:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def pool(time):
    return HostPool(["a", "b", "c"], time)


@pytest.fixture
def greedy(time):
    return EpsilonGreedy(["slow", "fast"], time, random.Random(1))


def chosen(destinations, count):
    return "".join(destinations.choose() for _ in range(count))


def test_round_robin_begins_with_the_second():
    assert chosen(Destinations(["a", "b", "c"]), 7) == "bcabcab"


def test_round_robin_ignores_earlier_failures():
    destinations = Destinations(["a", "b"])
    destinations.failed("a")
    assert chosen(destinations, 4) == "baba"


def test_a_destination_that_is_named_twice_has_two_turns():
    assert chosen(HostPool(["a", "a", "b"]), 6) == "aabaab"


def test_a_pool_takes_turns(pool):
    assert chosen(pool, 7) == "abcabca"


def test_a_failed_destination_is_skipped(pool, time):
    pool.failed("b")
    assert chosen(pool, 4) == "acac"
    time.now += FIRST_PENALTY
    assert chosen(pool, 2) == "ac"


def test_after_its_penalty_a_destination_is_tried_once_and_skipped_twice_as_long(pool, time):
    pool.failed("b")
    for rest in (30, 60, 120, 240, 480, MAX_PENALTY, MAX_PENALTY):
        time.now += rest
        assert "b" not in chosen(pool, 3)
        time.now += 0.5
        assert chosen(pool, 5).count("b") == 1
        pool.failed("b")


def test_after_its_penalty_a_destination_that_succeeds_is_healthy(pool, time):
    pool.failed("b")
    time.now += FIRST_PENALTY + 1
    assert chosen(pool, 3).count("b") == 1
    pool.succeeded("b", 0.1)
    assert chosen(pool, 3).count("b") == 1
    pool.failed("b")
    time.now += FIRST_PENALTY + 1
    assert chosen(pool, 3).count("b") == 1


def test_when_all_are_skipped_all_are_healthy_again(pool):
    for each in "abc":
        pool.failed(each)
    assert sorted(chosen(pool, 3)) == ["a", "b", "c"]


def test_a_message_that_failed_elsewhere_gets_even_a_skipped_destination(pool):
    pool.failed("a")
    pool.failed("b")
    assert pool.choose(["c"]) in ("a", "b")


def test_the_faster_destination_is_chosen_more_often(greedy):
    greedy.succeeded("slow", 0.9)
    greedy.succeeded("fast", 0.1)
    counts = Counter(greedy.choose() for _ in range(2000))
    assert counts["fast"] > 5 * counts["slow"] > 0


def test_old_times_are_forgotten(greedy, time):
    greedy.succeeded("slow", 0.9)
    greedy.succeeded("fast", 0.1)
    time.now += 299
    greedy.succeeded("fast", 9.0)
    time.now += 15
    counts = Counter(greedy.choose() for _ in range(2000))
    assert counts["fast"] > counts["slow"]  # nothing is known of the other


def test_recent_times_count_for_more(greedy, time):
    greedy.succeeded("slow", 0.1)
    greedy.succeeded("fast", 0.9)
    time.now += 250
    greedy.succeeded("slow", 0.9)
    greedy.succeeded("fast", 0.1)
    counts = Counter(greedy.choose() for _ in range(2000))
    assert counts["fast"] > 2 * counts["slow"]


def test_a_fast_destination_that_failed_is_skipped_too(greedy):
    greedy.succeeded("slow", 0.9)
    greedy.succeeded("fast", 0.1)
    greedy.failed("fast")
    assert {greedy.choose() for _ in range(50)} == {"slow"}


ACTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["succeeds", "fails", "waits"]), st.floats(0, 1000)), max_size=40
)
MODE = st.sampled_from(sorted(MODES))


def play(mode, count, acts, seed, each_choice):
    """Choose again and again, while destinations succeed, fail and time passes."""
    time = Time()
    addresses = [f"host{number}" for number in range(count)]
    destinations = MODES[mode](addresses, time, random.Random(seed))
    for number, act, seconds in acts:
        time.now += seconds if act == "waits" else 0
        if act == "succeeds":
            destinations.succeeded(addresses[number % count], seconds)
        elif act == "fails":
            destinations.failed(addresses[number % count])
        each_choice(destinations, addresses)


@given(MODE, st.integers(1, 4), ACTS, st.integers())
def test_a_message_is_offered_to_each_destination_once_whatever_happened_before(mode, count, acts, seed):
    def offer(destinations, addresses):
        failed: list[str] = []
        while (address := destinations.choose(failed)) is not None:
            failed.append(address)
        assert sorted(failed) == addresses

    play(mode, count, acts, seed, offer)


@given(MODE, st.integers(1, 4), ACTS, st.integers())
def test_the_same_clock_and_random_numbers_give_the_same_choices(mode, count, acts, seed):
    first: list[str] = []
    second: list[str] = []
    for choices in (first, second):
        play(mode, count, acts, seed, lambda destinations, _, choices=choices: choices.append(destinations.choose()))
    assert first == second
