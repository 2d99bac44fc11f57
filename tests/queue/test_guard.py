import pytest

from nsq_compat.queue.exiting import CLOSED, Exiting


def test_what_is_closed_lets_nothing_in():
    with pytest.raises(Exiting):
        CLOSED.admit(1, 0.0)
