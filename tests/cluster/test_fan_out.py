import threading

import pytest

from nsq_compat.cluster.fan_out import MAX_CONCURRENT, AllFailed, call_all, query_all
from nsq_compat.cluster.http_client import UpstreamError
from nsq_compat.cluster.reading import InvalidAnswer


def test_answers_come_in_the_order_of_the_asked():
    answer = query_all("nsqd", list(range(1000)), lambda number: number * 2, 20)
    assert answer.value == [(number, number * 2) for number in range(1000)]
    assert answer.errors == ()


def test_all_are_asked_at_the_same_time():
    together = threading.Barrier(MAX_CONCURRENT, timeout=20)
    answer = query_all("nsqd", list(range(MAX_CONCURRENT)), lambda _: together.wait() >= 0, 20)
    assert len(answer.value) == MAX_CONCURRENT


def test_who_fails_costs_only_its_own_answer():
    def ask(name):
        if name == "b":
            raise UpstreamError("b is gone")
        if name == "c":
            raise InvalidAnswer("c lies")
        return name

    answer = query_all("nsqd", ["a", "b", "c"], ask, 20)
    assert answer.value == [("a", "a")]
    assert answer.errors == ("b is gone", "c lies")


def test_nobody_answering_is_said_with_everybodys_reason():
    def ask(name):
        raise UpstreamError(f"{name} is gone")

    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: a is gone\nb is gone"):
        query_all("nsqlookupd", ["a", "b"], ask, 20)


def test_nobody_to_ask_is_nobody_answering_but_nothing_to_tell_is_done():
    with pytest.raises(AllFailed, match="failed to query any nsqd: $"):
        query_all("nsqd", [], str, 20)
    assert call_all([], str, 20).errors == ()


def test_one_that_never_comes_back_is_given_up():
    never = threading.Event()
    answer = query_all("nsqd", ["a", "b"], lambda name: name == "a" or never.wait(50), 0.1)
    never.set()
    assert answer.value == [("a", True)]
    assert answer.errors == ("b: timeout",)


def test_a_mistake_of_ours_is_not_taken_for_theirs():
    with pytest.raises(ZeroDivisionError):
        query_all("nsqd", [0], lambda number: 1 // number, 20)


def test_others_are_asked_while_as_many_as_may_be_at_once_all_hang(monkeypatch):
    monkeypatch.setattr("nsq_compat.cluster.fan_out._STUCK_SECONDS", 0.05)
    last_was_asked = threading.Event()

    def ask(item: int) -> bool:
        if item == 9:
            last_was_asked.set()
        return last_was_asked.wait(20)

    answer = call_all(range(10), ask, 20, max_concurrent=4)
    assert answer.value == [(item, True) for item in range(10)]
