from dataclasses import FrozenInstanceError

import pytest

from nsq_compat.queue.limits import QueueLimits


def test_the_defaults_are_those_of_nsqd():
    assert QueueLimits() == QueueLimits(
        mem_queue_size=10_000, max_msg_timeout=15 * 60.0, max_channel_consumers=0, node_id=0
    )


def test_limits_are_fixed_once_they_are_given():
    limits = QueueLimits()
    with pytest.raises(FrozenInstanceError):
        limits.node_id = 1  # type: ignore[misc]
