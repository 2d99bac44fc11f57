import pytest

from nsq_compat.client.outcomes import Attempt, Error, Outcome, Refused, TooFewCopies, Unknown, result_of

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
    with pytest.raises(Unknown, match=r"b:1 refused \(no route\); c:1 unknown \(no answer\)"):
        result_of([REFUSED, UNKNOWN], 1)
