import pytest

from nsq_compat.client.message import AlreadyAnswered, Message, finish_or_requeue, log_giving_up, requeue_after_error


class Answers:
    """Records a message's answers."""

    is_closed = False

    def __init__(self) -> None:
        self.given: list[object] = []

    def finish(self, message: Message) -> None:
        self.given.append("finish")

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.given.append((delay, backoff))

    def touch(self, message: Message) -> None:
        self.given.append("touch")


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def message(answers) -> Message:
    return Message(b"0123456789abcdef", b"body", 1_000, 2, answers, "host:1")


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({}, (None, True)),
        ({"delay": -1}, (None, True)),
        ({"delay": 0}, (0, True)),
        ({"delay": 2, "backoff": False}, (2, False)),
        ({"time_ms": 1500}, (1.5, True)),
        ({"time_ms": -1}, (None, True)),
    ],
)
def test_the_delay_of_a_requeue_is_given_or_the_consumers(message, answers, options, answer):
    message.requeue(**options)
    assert answers.given == [answer]


@pytest.mark.parametrize("wrong", [{"delay": "1s"}, {"time_ms": "1s"}, {"delay": float("inf")}])
def test_a_message_that_is_requeued_with_a_wrong_delay_can_still_be_answered(message, answers, wrong):
    with pytest.raises((TypeError, ValueError), match="must be a"):
        message.requeue(**wrong)
    assert not message.is_answered
    message.finish()
    assert answers.given == ["finish"]


@pytest.mark.parametrize("first", ["finish", "requeue"])
@pytest.mark.parametrize("second", ["finish", "requeue", "touch"])
def test_a_message_is_answered_once(message, answers, first, second):
    getattr(message, first)()
    with pytest.raises(AlreadyAnswered, match="0123456789abcdef"):
        getattr(message, second)()
    assert len(answers.given) == 1
    assert message.has_responded()


def test_a_message_may_be_touched_often_before_it_is_answered(message, answers):
    message.touch()
    message.touch()
    message.finish()
    assert answers.given == ["touch", "touch", "finish"]


def test_listeners_are_called_before_an_answer_is_sent(message, answers):
    heard: list[object] = []
    for event in ("touch", "finish", "requeue"):
        message.on(event, lambda message, event=event: heard.append((event, message.id, len(answers.given))))
    message.touch()
    message.finish()
    assert heard == [("touch", message.id, 0), ("finish", message.id, 1)]


def test_a_handler_may_defer_the_answer(message):
    assert not message.is_async()
    message.enable_async()
    assert message.is_async()
    assert not message.has_responded()


def test_a_message_is_lost_with_its_connection(message, answers):
    assert not message.is_lost
    answers.is_closed = True
    assert message.is_lost


def test_the_repr_of_a_message(message):
    assert repr(message) == "<Message 0123456789abcdef attempt 2 from host:1>"


@pytest.mark.parametrize(
    ("outcomes", "answers_given"), [([True], ["finish"]), ([False], [(None, True)]), ([True, False], ["finish"])]
)
def test_a_handlers_first_outcome_answers_the_message(message, answers, outcomes, answers_given):
    for succeeded in outcomes:
        finish_or_requeue(message, succeeded)
    assert answers.given == answers_given


def test_an_async_message_is_not_answered_when_the_handler_returns(message, answers):
    message.enable_async()
    finish_or_requeue(message, True)
    assert answers.given == []


def test_an_exception_requeues_an_async_message_too_and_is_logged(message, answers, caplog):
    message.enable_async()
    requeue_after_error(message, RuntimeError("on purpose"))
    assert answers.given == [(None, True)]
    assert "on purpose" in caplog.text


def test_an_exception_after_the_answer_is_only_logged(message, answers, caplog):
    message.finish()
    requeue_after_error(message, RuntimeError("on purpose"))
    assert answers.given == ["finish"]
    assert "on purpose" in caplog.text


def test_giving_up_is_logged_in_nsqs_words(message, caplog):
    log_giving_up(message)
    assert "msg 0123456789abcdef attempted 2 times, giving up" in caplog.text
