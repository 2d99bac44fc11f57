"""Effects of policies on clients, as bytes."""

import pytest

from nsq_compat.policy.enforcer import PolicyEnforcer
from nsq_compat.policy.policies import Policies


@pytest.fixture
def enforcer(nsqd):
    return PolicyEnforcer(nsqd.broker, lambda: nsqd.now, lambda: nsqd.now_ns)


def test_a_message_requeued_once_too_often_is_found_in_the_dead_letter_topic(nsqd, enforcer, producer):
    enforcer.apply(Policies([{"max_attempts": 2}]))
    consumer = nsqd.connect().subscribes(ready=1)
    producer.publishes(b"bad")
    consumer.hears(b"bad").says(b"REQ " + consumer.id_of(b"bad") + b" 0\n")
    consumer.hears(b"bad").says(b"REQ " + consumer.id_of(b"bad") + b" 0\n")
    consumer.hears()
    assert [message.attempts for message in consumer.received] == [1, 2]
    enforcer.dead_letters.send(nsqd.now, nsqd.now_ns)
    nsqd.connect().subscribes(b"t.c.dead", b"redrive", ready=1).hears(b"bad")
    consumer.says(b"FIN " + consumer.id_of(b"bad") + b"\n").hears(
        b"E_FIN_FAILED FIN " + consumer.id_of(b"bad") + b" failed ID not in flight"
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (b"PUB t\n\0\0\0\1b", b"E_PUB_FAILED PUB"),
        (b"DPUB t 100\n\0\0\0\1b", b"E_DPUB_FAILED DPUB"),
        (b"MPUB t\n\0\0\0\x0e\0\0\0\2\0\0\0\1b\0\0\0\1c", b"E_MPUB_FAILED MPUB"),
    ],
)
def test_a_full_channel_refuses_as_nsqd_refuses_when_it_cannot_publish(nsqd, enforcer, producer, command, code):
    enforcer.apply(Policies([{"max_depth": 1}]))
    nsqd.connect().subscribes()
    producer.publishes(b"a")
    producer.says(command).hears(code + b" failed channel t:c is full (max_depth)").and_is_closed()


def test_a_rate_is_kept_without_further_requests(nsqd, enforcer, producer):
    enforcer.apply(Policies([{"max_rate": 10, "burst": 1}]))
    consumer = nsqd.connect().subscribes(ready=100)
    producer.publishes(*[b"%d" % number for number in range(20)])
    consumer.hears(b"0")
    nsqd.waits(0.55)
    consumer.hears(b"1", b"2", b"3", b"4", b"5")


def test_ready_consumers_share_a_rate(nsqd, enforcer, producer):
    enforcer.apply(Policies([{"max_rate": 10, "burst": 1}]))
    one, other = (nsqd.connect().subscribes(ready=100) for _ in range(2))
    producer.publishes(*[b"%d" % number for number in range(50)])
    nsqd.waits(2.05)
    assert {len(one.received), len(other.received)} <= {10, 11}
