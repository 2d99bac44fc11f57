import threading

import pytest

from nsq_compat.cluster.fan_out import MAX_CONCURRENT, AllFailed, call_all, query_all
from nsq_compat.cluster.http_client import UpstreamError
from nsq_compat.cluster.reading import InvalidAnswer


def test_answers_have_the_order_of_the_items():
    answer = query_all("nsqd", list(range(1000)), lambda number: number * 2, 20)
    assert answer.value == [(number, number * 2) for number in range(1000)]
    assert answer.errors == ()


def test_calls_are_concurrent():
    together = threading.Barrier(MAX_CONCURRENT, timeout=20)
    answer = query_all("nsqd", list(range(MAX_CONCURRENT)), lambda _: together.wait() >= 0, 20)
    assert len(answer.value) == MAX_CONCURRENT


def test_a_failed_call_costs_only_its_own_answer():
    def ask(name):
        if name == "b":
            raise UpstreamError("b is gone")
        if name == "c":
            raise InvalidAnswer("c lies")
        return name

    answer = query_all("nsqd", ["a", "b", "c"], ask, 20)
    assert answer.value == [("a", "a")]
    assert answer.errors == ("b is gone", "c lies")


def test_if_all_calls_fail_the_error_has_all_reasons():
    def ask(name):
        raise UpstreamError(f"{name} is gone")

    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: a is gone\nb is gone"):
        query_all("nsqlookupd", ["a", "b"], ask, 20)


def test_no_items_are_a_failed_query_but_a_successful_call():
    with pytest.raises(AllFailed, match="failed to query any nsqd: $"):
        query_all("nsqd", [], str, 20)
    assert call_all([], str, 20).errors == ()


def test_a_call_that_never_returns_is_a_timeout():
    never = threading.Event()
    answer = query_all("nsqd", ["a", "b"], lambda name: name == "a" or never.wait(50), 0.1)
    never.set()
    assert answer.value == [("a", True)]
    assert answer.errors == ("b: timeout",)


def test_other_exceptions_are_raised():
    with pytest.raises(ZeroDivisionError):
        query_all("nsqd", [0], lambda number: 1 // number, 20)


def test_more_calls_start_while_all_concurrent_calls_hang(monkeypatch):
    monkeypatch.setattr("nsq_compat.cluster.fan_out._STUCK_SECONDS", 0.05)
    last_was_asked = threading.Event()

    def ask(item: int) -> bool:
        if item == 9:
            last_was_asked.set()
        return last_was_asked.wait(20)

    answer = call_all(range(10), ask, 20, max_concurrent=4)
    assert answer.value == [(item, True) for item in range(10)]
