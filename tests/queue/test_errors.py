import pytest

from nsq_compat.queue.errors import REFUSES_ALL, Exiting


def test_the_text_is_that_of_nsq():
    assert str(Exiting()) == "exiting"


def test_a_closed_topic_admits_no_messages():
    with pytest.raises(Exiting):
        REFUSES_ALL.admit(1, 0.0)
