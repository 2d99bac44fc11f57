import pytest

from nsq_compat.client.link import ConnectionLost, NotExecuted
from nsq_compat.client.nodes import (
    Attempt,
    Candidates,
    Error,
    Nodes,
    Outcome,
    Refused,
    TooFewCopies,
    Unknown,
    failed_attempt,
    result_of,
)
from nsq_compat.protocol.errors import E_BAD_TOPIC, NsqError

SENT = Attempt("a:1", Outcome.SENT)
REFUSED = Attempt("b:1", Outcome.REFUSED, OSError("no route"))
UNKNOWN = Attempt("c:1", Outcome.UNKNOWN, TimeoutError("no answer"))


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
    ],
)
def test_the_outcome_is_unknown_only_if_nsqd_may_have_executed_the_command(error, was_sent, outcome):
    assert failed_attempt("a:1", error, was_sent=was_sent).outcome is outcome
