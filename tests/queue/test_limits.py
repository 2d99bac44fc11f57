from dataclasses import FrozenInstanceError

import pytest

from nsq_compat.queue.limits import REFUSES_ALL, Exiting, QueueLimits


def test_the_defaults_are_those_of_nsqd():
    assert QueueLimits() == QueueLimits(
        mem_queue_size=10_000, max_msg_timeout=15 * 60.0, max_channel_consumers=0, node_id=0
    )


def test_limits_are_fixed_once_they_are_given():
    limits = QueueLimits()
    with pytest.raises(FrozenInstanceError):
        limits.node_id = 1  # type: ignore[misc]


def test_the_text_for_an_exiting_topic_is_that_of_nsq():
    assert str(Exiting()) == "exiting"


def test_a_closed_topic_admits_no_messages():
    with pytest.raises(Exiting):
        REFUSES_ALL.admit(1, 0.0)
