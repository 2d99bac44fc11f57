from typing import Any

import pytest

from nsq_compat.client.link import ConnectionLost, NotExecuted
from nsq_compat.client.nodes import (
    Attempt,
    Candidates,
    Error,
    HeadersNotTaken,
    Nodes,
    Outcome,
    Refused,
    TooFewCopies,
    Unknown,
    failed_attempt,
    result_of,
)
from nsq_compat.client.publishing import Publish
from nsq_compat.protocol.errors import E_BAD_TOPIC, E_NOT_MIRRORED, NsqError

SENT = Attempt("a:1", Outcome.SENT)
REFUSED = Attempt("b:1", Outcome.REFUSED, OSError("no route"))
UNKNOWN = Attempt("c:1", Outcome.UNKNOWN, TimeoutError("no answer"))
PUBLISH = Publish(b"HPUB t\n", True)


def test_enough_copies_are_published_whatever_else_happened():
    published = result_of([UNKNOWN, REFUSED, SENT], 1)
    assert published.nodes == ("a:1",)
    assert published.doubtful == ("c:1",)


@pytest.mark.parametrize(
    ("attempts", "copies", "error"),
    [
        ([], 1, Refused),
        ([REFUSED], 1, Refused),
        ([REFUSED, UNKNOWN], 1, Unknown),
        ([SENT, REFUSED], 2, TooFewCopies),
        ([SENT, UNKNOWN], 2, TooFewCopies),
    ],
)
def test_a_failed_publish_is_refused_only_if_no_node_can_have_the_message(attempts, copies, error):
    with pytest.raises(error) as raised:
        result_of(attempts, copies)
    assert raised.value.attempts == tuple(attempts)
    assert isinstance(raised.value, Error)


def test_an_error_lists_the_attempts():
    with pytest.raises(Unknown, match="^b:1: no route; c:1: no answer; nsqd may have the message$"):
        result_of([REFUSED, UNKNOWN], 1)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(["a:1", "b:1", "c:1", "a:1"])


def test_what_an_nsqd_says_is_one_line_of_an_error():
    attempt = Attempt("a:1", Outcome.REFUSED, NsqError("E_PUB_FAILED", b"x\nERROR forged \x1b[2J"))
    assert str(attempt) == r"a:1: E_PUB_FAILED x\nERROR forged \x1b[2J"


def test_nodes_take_turns(nodes):
    a, b, c = "a:1", "b:1", "c:1"
    assert [nodes.in_order(0) for _ in range(4)] == [[a, b, c], [b, c, a], [c, a, b], [a, b, c]]


def test_a_node_that_fails_comes_last_each_time_for_longer(nodes):
    now = 100.0
    for penalty in (1, 2, 4, 8, 16, 32, 60, 60):
        nodes.note(REFUSED, now)
        assert all(nodes.in_order(now + penalty - 0.1)[-1] == "b:1" for _ in range(3))
        now += penalty
        assert {nodes.in_order(now)[0] for _ in range(3)} == {"a:1", "b:1", "c:1"}


def test_a_success_removes_the_penalty(nodes):
    for attempt in (REFUSED, REFUSED, Attempt("b:1", Outcome.SENT)):
        nodes.note(attempt, 0)
    assert {nodes.in_order(0)[0] for _ in range(3)} == {"a:1", "b:1", "c:1"}
    nodes.note(REFUSED, 0)
    assert {nodes.in_order(1)[0] for _ in range(3)} == {"a:1", "b:1", "c:1"}


def test_an_error_of_the_message_is_not_the_nodes(nodes):
    nodes.note(Attempt("a:1", Outcome.REFUSED, NsqError(E_BAD_TOPIC, "no topic")), 0)
    assert nodes.in_order(0)[0] == "a:1"


def test_candidates_are_tried_in_order_twice(nodes):
    candidates, seen = Candidates(nodes, 4, 0, 60), []
    while (taken := candidates.take(0)) is not None:
        seen.append(taken[0])
        assert not candidates.note(Attempt(taken[0], Outcome.REFUSED), 0)
    assert seen == ["a:1", "b:1", "c:1"] * 2
    assert candidates.left == 0
    assert [attempt.address for attempt in candidates.attempts] == seen


def taken(candidates: Candidates, count: int) -> list[str | None]:
    return [each and each[0] for each in (candidates.take(0) for _ in range(count))]


def test_a_node_in_use_for_one_copy_is_not_used_for_another(nodes):
    candidates = Candidates(nodes, 100, 0, 60)
    assert taken(candidates, 2) == ["a:1", "b:1"]
    assert candidates.note(SENT, 0)
    assert not candidates.note(REFUSED, 0)
    assert taken(candidates, 3) == ["c:1", "b:1", None]


def test_each_attempt_has_a_share_of_the_time_that_is_left(nodes):
    candidates = Candidates(nodes, 1, 0, 60)
    assert candidates.take(0) == ("a:1", 20)
    assert candidates.take(10) == ("b:1", 35)
    assert candidates.take(50) == ("c:1", 60)
    assert Candidates(nodes, 1, 0, 60).take(60) is None


def test_a_connection_that_had_ended_says_nothing_about_the_node_and_does_not_count(nodes):
    candidates = Candidates(nodes, 1, 0, 60)
    for _ in range(10):
        assert taken(candidates, 1) == ["a:1"]
        candidates.note(failed_attempt("a:1", NotExecuted("closed"), was_sent=True), 0)
    assert {nodes.in_order(0)[0] for _ in range(3)} == {"a:1", "b:1", "c:1"}
    assert candidates.left == 3
    for node in ("a:1", "b:1", "c:1"):
        assert taken(candidates, 1) == [node]
        candidates.note(failed_attempt(node, NotExecuted("closed"), was_sent=True), 0)
    assert taken(candidates, 1) == [None]


@pytest.mark.parametrize(
    ("error", "was_sent", "outcome"),
    [
        (ConnectionLost("refused"), False, Outcome.REFUSED),
        (ConnectionLost("broke"), True, Outcome.UNKNOWN),
        (TimeoutError(), True, Outcome.UNKNOWN),
        (NotExecuted("closed"), True, Outcome.REFUSED),
        (NsqError(E_BAD_TOPIC, "no topic"), True, Outcome.REFUSED),
        (NsqError(E_NOT_MIRRORED, "HPUB failed"), True, Outcome.UNKNOWN),
    ],
)
def test_the_outcome_is_unknown_only_if_nsqd_may_have_executed_the_command(error, was_sent, outcome):
    assert failed_attempt("a:1", error, was_sent=was_sent).outcome is outcome


# --- Messages with ids ------------------------------------------------------------------------------------------------

LOST = ConnectionLost("broke")
FULL = NsqError("E_HPUB_FAILED", "no space")


def with_ids(nodes: Nodes, **options: Any) -> Candidates:
    return Candidates(nodes, options.pop("copies", 1), 0, 60, ids=True, **options)


def fails(candidates: Candidates, node: str, error: Exception, *, was_sent: bool = True) -> float:
    """The pause before the next attempt."""
    attempt = failed_attempt(node, error, was_sent=was_sent)
    assert not candidates.note(attempt, 0)
    return candidates.pause_after(attempt, 0)


def test_a_node_that_did_not_answer_is_tried_until_it_does_after_longer_and_longer_pauses(nodes):
    candidates = with_ids(nodes)
    assert taken(candidates, 1) == ["a:1"]
    pauses = [fails(candidates, "a:1", LOST)]
    for _ in range(8):
        assert taken(candidates, 1) == ["a:1"]
        pauses.append(fails(candidates, "a:1", ConnectionLost("refused"), was_sent=False))
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    with pytest.raises(Unknown) as failure:
        candidates.result(PUBLISH)
    assert (failure.value.publish, failure.value.doubtful) == (PUBLISH, ("a:1",))


def test_a_pause_ends_at_the_deadline(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    fails(candidates, "a:1", LOST)
    fails(candidates, "a:1", LOST)
    attempt = failed_attempt("a:1", LOST, was_sent=True)
    assert candidates.pause_after(attempt, 59.95) == pytest.approx(0.05)
    assert candidates.pause_after(attempt, 61) == 0
    assert candidates.take(60) is None


def test_a_further_attempt_gets_half_of_the_time_that_is_left(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    for now, deadline in ((20, 40), (58.5, 59.5), (59.5, 60)):
        fails(candidates, "a:1", LOST)
        assert candidates.take(now) == ("a:1", deadline)


def test_a_node_that_answers_at_last_leaves_no_doubt(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    fails(candidates, "a:1", LOST)
    taken(candidates, 1)
    assert candidates.note(Attempt("a:1", Outcome.SENT), 0)
    published = candidates.result(PUBLISH)
    assert (published.nodes, published.doubtful) == (("a:1",), ())
    assert [each.outcome for each in published.attempts] == [Outcome.RETRIED, Outcome.SENT]


def test_a_node_that_refuses_a_repetition_is_replaced(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    fails(candidates, "a:1", LOST)
    taken(candidates, 1)
    fails(candidates, "a:1", FULL)
    assert taken(candidates, 1) == ["b:1"]
    assert candidates.note(Attempt("b:1", Outcome.SENT), 0)
    assert candidates.result(PUBLISH).doubtful == ()


def test_a_node_that_does_not_take_headers_any_more_does_not_answer(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    fails(candidates, "a:1", LOST)
    taken(candidates, 1)
    fails(candidates, "a:1", HeadersNotTaken(), was_sent=False)
    assert taken(candidates, 1) == ["a:1"]


def test_repeated_failures_of_a_call_count_once_for_other_calls(nodes):
    candidates = with_ids(nodes)
    taken(candidates, 1)
    for _ in range(5):
        fails(candidates, "a:1", LOST)
    assert all(nodes.in_order(0.9)[-1] == "a:1" for _ in range(3))
    assert "a:1" in {nodes.in_order(1.0)[0] for _ in range(3)}


def refuse(candidates: Candidates, count: int) -> list[float]:
    """Let attempts fail one after the other, because nodes cannot be reached; returns the pauses."""
    return [
        fails(candidates, node, ConnectionLost("refused"), was_sent=False)
        for _ in range(count)
        if (node := taken(candidates, 1)[0]) is not None
    ]


def test_nodes_that_cannot_be_reached_are_tried_again_after_longer_and_longer_pauses(nodes):
    candidates = with_ids(nodes)
    pauses = refuse(candidates, 24)
    assert pauses == [pause for last in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0) for pause in (0.0, 0.0, last)]
    (last,) = map(str, taken(candidates, 1))
    assert candidates.note(Attempt(last, Outcome.SENT), 0)
    assert candidates.result(PUBLISH).nodes == (last,)


def test_only_nodes_that_cannot_be_reached_or_stop_are_tried_again(nodes):
    candidates = with_ids(nodes)
    stopping = NsqError("E_HPUB_FAILED", "HPUB failed exiting")
    assert taken(candidates, 1) == ["a:1"]
    assert fails(candidates, "a:1", FULL) == 0
    assert taken(candidates, 1) == ["b:1"]
    assert fails(candidates, "b:1", stopping) == 0
    assert taken(candidates, 1) == ["c:1"]
    assert fails(candidates, "c:1", HeadersNotTaken(), was_sent=False) > 0
    assert taken(candidates, 2) == ["b:1", None]
    assert fails(candidates, "b:1", FULL) == 0
    assert candidates.take(0) is None
    with pytest.raises(Refused):
        candidates.result(PUBLISH)


def test_without_ids_nodes_that_cannot_be_reached_are_not_tried_again(nodes):
    candidates = Candidates(nodes, 1, 0, 60)
    assert refuse(candidates, 10) == [0.0] * 3


def test_both_copies_wait_for_their_nodes(nodes):
    candidates = with_ids(nodes, copies=2)
    for _ in range(10):
        nodes_taken = taken(candidates, 2)
        assert len({*nodes_taken}) == 2
        for node in nodes_taken:
            fails(candidates, str(node), ConnectionLost("refused"), was_sent=False)
    first, second = map(str, taken(candidates, 2))
    assert candidates.note(Attempt(first, Outcome.SENT), 0)
    fails(candidates, second, ConnectionLost("refused"), was_sent=False)
    (third,) = map(str, taken(candidates, 1))
    assert third != first
    assert candidates.note(Attempt(third, Outcome.SENT), 0)
    assert set(candidates.result(PUBLISH).nodes) == {first, third}


def test_of_equal_attempts_the_last_three_are_kept(nodes):
    candidates = with_ids(nodes)
    assert len(refuse(candidates, 150)) == 150
    assert len(candidates.attempts) == 9
    with pytest.raises(Refused) as failure:
        candidates.result(PUBLISH)
    again = with_ids(nodes, earlier=failure.value.attempts)
    assert len(refuse(again, 3)) == 3
    assert len(again.attempts) == 9


def test_a_further_call_begins_with_the_nodes_in_doubt_and_spares_those_that_have_a_copy(nodes):
    earlier = [Attempt("b:1", Outcome.SENT), failed_attempt("c:1", LOST, was_sent=True)]
    candidates = with_ids(nodes, copies=2, earlier=earlier)
    assert candidates.missing == 1
    assert taken(candidates, 1) == ["c:1"]
    fails(candidates, "c:1", FULL)
    assert taken(candidates, 1) == ["a:1"]
    assert candidates.note(Attempt("a:1", Outcome.SENT), 0)
    assert candidates.result(PUBLISH).nodes == ("b:1", "a:1")
