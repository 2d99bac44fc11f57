import pytest

from nsq_compat.client import handling
from nsq_compat.client.message import Message


class Answers:
    """Where a message's answers go."""

    is_over = False

    def __init__(self) -> None:
        self.given: list[str] = []

    def finish(self, message: Message) -> None:
        self.given.append("finish")

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.given.append("requeue")

    def touch(self, message: Message) -> None: ...


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def message(answers) -> Message:
    return Message(b"0123456789abcdef", b"body", 1_000, 7, answers)


def test_success_and_failure_are_answered(message, answers):
    handling.settle(message, True)
    handling.settle(message, False)
    assert answers.given == ["finish"]


def test_failure_requeues(message, answers):
    handling.settle(message, False)
    assert answers.given == ["requeue"]


def test_who_will_answer_later_is_not_answered_for(message, answers):
    message.enable_async()
    handling.settle(message, True)
    assert answers.given == []


def test_an_exception_requeues_and_is_logged_even_when_the_answer_was_to_come_later(message, answers, caplog):
    message.enable_async()
    handling.failed(message, RuntimeError("on purpose"))
    assert answers.given == ["requeue"]
    assert "on purpose" in caplog.text


def test_an_exception_after_the_answer_is_only_logged(message, answers, caplog):
    message.finish()
    handling.failed(message, RuntimeError("on purpose"))
    assert answers.given == ["finish"]
    assert "on purpose" in caplog.text


def test_giving_up_is_said_in_nsqs_words(message, caplog):
    handling.log_giving_up(message)
    assert "msg 0123456789abcdef attempted 7 times, giving up" in caplog.text
