import pytest

from nsq_compat.queue.errors import REFUSES_ALL, Exiting


def test_it_says_the_word_that_clients_know():
    assert str(Exiting()) == "exiting"


def test_what_is_closed_lets_nothing_in():
    with pytest.raises(Exiting):
        REFUSES_ALL.admit(1, 0.0)
