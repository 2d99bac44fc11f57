"""The process's memory in /stats, and the topics that garbage collection passes over."""

import errno
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_compat.nsqd.memory import MemoryStats, TopicExemption
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.limits import QueueLimits


def test_without_a_free_descriptor_the_statistics_are_those_of_the_last_call(monkeypatch):
    memory = MemoryStats()
    before = memory.stats()
    assert before["heap_in_use_bytes"] > 1_000_000

    def no_descriptor(*_: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", no_descriptor)
    again = memory.stats()
    assert again["heap_in_use_bytes"] == before["heap_in_use_bytes"]
    assert again["heap_idle_bytes"] == before["heap_idle_bytes"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Its topics are exempted; afterwards nothing is."""
    broker = Broker(QueueLimits())
    TopicExemption(broker)
    yield broker
    gc.unfreeze()


def test_topics_are_exempt_from_collection_once_there_are_many(broker):
    for number in range(2_000):
        broker.topic(f"t{number}").channel("c")
    collected = {id(each) for each in gc.get_objects()}
    assert not [name for name, topic in broker.topics.items() if id(topic) in collected]


def test_topics_that_come_and_go_are_not_exempted_again(broker):
    for number in range(500):
        broker.topic(f"t{number}")
    exempt = gc.get_freeze_count()
    for number in range(1_000):
        broker.delete_topic(f"t{number}")
        broker.topic(f"t{number + 500}")
    assert gc.get_freeze_count() <= exempt
