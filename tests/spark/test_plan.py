"""The plan of a batch: limits, proportions, and its form in an offset."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.log_plan import parts
from pyspark_nsq.nodes import Node
from pyspark_nsq.options import read_options
from pyspark_nsq.plan import HoldBack, Share, from_json, plan_batch, to_json
from pyspark_nsq.spool import Orphan
from pyspark_nsq.topic_logs import TopicLog

WRITTEN = {"subscribe": "t", "channel": "c", "nsqdTcpAddresses": "n:1", "spoolDir": "/spool"}


def options_with(**more: int | str):
    return read_options(WRITTEN | {name: str(value) for name, value in more.items()}, "stream")


def node(number: int) -> Node:
    return Node("t", f"n:{number}", "h:1")


@given(
    depths=st.lists(st.integers(0, 10_000), max_size=6),
    limit=st.none() | st.integers(1, 20_000),
    per_nsqd=st.integers(1, 4),
    at_least=st.integers(0, 20),
    largest=st.integers(1, 5000),
)
def test_shares_add_up_and_respect_every_limit(depths, limit, per_nsqd, at_least, largest):
    options = options_with(partitionsPerNsqd=per_nsqd, minPartitions=at_least, maxMessagesPerPartition=largest)
    backlog = [(node(number), depth) for number, depth in enumerate(depths)]
    shares = plan_batch(backlog, limit, options)
    total = sum(depths) if limit is None else min(sum(depths), limit)
    assert sum(share.count for share in shares) == total
    assert all(0 < share.count <= largest for share in shares)
    assert len(shares) >= min(at_least, total)
    for each, depth in backlog:
        assert sum(share.count for share in shares if share.nsqd == each.tcp) <= depth


def test_shares_are_proportional_to_backlogs():
    shares = plan_batch([(node(1), 300), (node(2), 100)], 40, options_with())
    assert shares == [Share("t", "n:1", 30, "h:1"), Share("t", "n:2", 10, "h:1")]


def test_a_node_with_unknown_backlog_gets_full_shares():
    shares = plan_batch([(node(1), None)], None, options_with(maxMessagesPerPartition=50, partitionsPerNsqd=2))
    assert shares == [Share("t", "n:1", 50, "h:1")] * 2


def test_an_nsqd_that_claims_any_backlog_gets_ten_thousand_tasks_at_most():
    shares = plan_batch([(node(1), 10**15), (node(2), 5)], None, options_with())
    assert len(shares) == 10_001
    assert sum(share.count for share in shares) == 10**15 + 5
    for size in (0, 10**30):
        log = TopicLog("t", "n:1", first=0, next=10**15, bytes=size, is_retained=True)
        assert parts(10**15, 10**15, log, options_with()) == 10_000


def test_a_plan_survives_sparks_json():
    plan: list[Orphan | Share] = [Orphan("orphans/a.500.spool", 500, 900), Share("t", "n:1", 7)]
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


def test_a_batch_is_held_back_until_it_is_large_enough_or_late():
    now = [0.0]
    options = options_with(minMessagesPerTrigger=10, maxTriggerDelay="90s")
    held = HoldBack(options, lambda: now[0])
    # The first batch after a start is not.
    assert not held.holds_back(0)
    assert not held.holds_back(3)
    assert held.holds_back(9)
    assert not held.holds_back(10)
    now[0] = 89.0
    assert held.holds_back(9)
    now[0] = 90.0
    assert not held.holds_back(1)
    assert held.holds_back(9)
