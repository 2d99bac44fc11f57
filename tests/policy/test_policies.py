import pytest

from nsq_compat.log.offsets import Retention
from nsq_compat.policy.policies import Applied, Bounds, DeadLettering, Policies, Policy, PolicyError
from nsq_compat.queue.wait_queue import DeliveryLimits, Rate


def complaint(*written: object) -> str:
    with pytest.raises(PolicyError) as caught:
        Policies(list(written))
    return str(caught.value)


def test_without_policies_nothing_applies():
    assert Policies().for_channel("orders", "archive") == Applied()
    assert Policies().for_channel("orders", "").bounds is None
    assert len(Policies()) == 0


def test_all_settings_of_a_policy():
    policies = Policies(
        [
            {"topic": "orders", "max_attempts": 5, "dead_letter_topic": "dead", "when_expired": "dead-letter"},
            {"max_depth": 10, "max_bytes": 100, "max_age": "1m30s", "when_full": "drop-oldest"},
            {"max_rate": 2.5, "burst": 7},
            {"max_in_flight": 100, "exclusive": True},
        ]
    )
    applied = policies.for_channel("orders", "archive")
    assert applied.dead_lettering == DeadLettering(5, "dead", takes_expired=True)
    assert applied.bounds == Bounds(10, 100, 90.0, drops=True)
    assert applied.rate == Rate(2.5, 7)
    assert applied.delivery_limits == DeliveryLimits(Rate(2.5, 7), 100, is_exclusive=True)
    assert applied.to_settings("orders", "archive") == {
        "max_attempts": 5, "dead_letter_topic": "dead", "when_expired": "dead-letter",
        "max_depth": 10, "max_bytes": 100, "max_age": "1m30s",
        "when_full": "drop-oldest", "max_rate": 2.5, "burst": 7, "max_in_flight": 100, "exclusive": True,
    }  # fmt: skip
    assert Policies(policies.written).for_channel("orders", "archive") == applied


def test_a_window_for_publish_ids_keeps_the_messages_of_the_window():
    policies = Policies(
        [
            {"topic": "both", "retain_for": "1h", "retain_bytes": 5},
            {"topic": "orders|both", "dedup_window": "10m"},
            {"dedup_window": "1m"},
        ]
    )
    orders, both = policies.for_channel("orders", ""), policies.for_channel("both", "")
    assert (orders.dedup_window, orders.kept) == (600.0, Retention(0.0, None, 600.0))
    assert both.kept == Retention(3600.0, 5, 600.0)
    assert orders.to_settings("orders", "") == {"dedup_window": "10m0s"}
    assert orders.to_settings("orders", "archive") == {}
    assert [policies.keeping(name) for name in ("orders", "both", "clicks")] == [[2], [1, 2], [3]]
    assert policies.numbers_for("orders", "archive") == []
    assert Policies().for_channel("orders", "").kept is None


def test_an_exception_to_exclusive_comes_first():
    policies = Policies([{"channel": "shared", "exclusive": False}, {"exclusive": True}])
    assert policies.for_channel("orders", "archive").delivery_limits.is_exclusive
    assert not policies.for_channel("orders", "shared").delivery_limits.is_exclusive


def test_settings_have_defaults():
    applied = Policies([{"max_attempts": 3, "max_depth": 1, "max_rate": 50}]).for_channel("orders", "archive")
    assert applied.dead_lettering is not None
    assert applied.dead_lettering.topic_for("orders", "archive") == "orders.archive.dead"
    assert applied.bounds == Bounds(1, None, None, drops=False)
    assert applied.rate == Rate(50.0, 5)


def test_a_pattern_has_to_match_the_whole_name():
    policies = Policies([{"topic": "orders|pay.*", "channel": "a+", "max_rate": 1}])
    assert policies.for_channel("orders", "aa").rate
    assert policies.for_channel("payments", "a").rate
    assert not policies.for_channel("orders2", "a").rate
    assert not policies.for_channel("my.orders", "a").rate
    assert not policies.for_channel("orders", "ab").rate


def test_the_pattern_of_a_topic_is_matched_once_for_all_channels(monkeypatch):
    # A match takes 2 us: at SIGHUP, a thousand policies stopped a node with 4,000 channels for 12 s.
    matched = []
    fits_topic = Policy.fits_topic

    def counting(policy, topic):
        matched.append(topic)
        return fits_topic(policy, topic)

    monkeypatch.setattr(Policy, "fits_topic", counting)
    policies = Policies([{"topic": "orders", "channel": f"c{number}", "max_attempts": 5} for number in range(10)])
    channels = [f"c{number}" for number in range(20)]
    assert [policies.numbers_for("orders", channel) for channel in channels[:11]] == [*([n] for n in range(1, 11)), []]
    assert [policies.for_channel("orders", channel) == Applied() for channel in channels] == [False] * 10 + [True] * 10
    assert policies.creating("orders") == (0, None)
    assert policies.for_channel("bills", "c1") == Applied()
    assert matched == ["orders"] * 10 + ["bills"] * 10


def test_the_policies_of_few_topics_are_remembered(monkeypatch):
    monkeypatch.setattr("nsq_compat.policy.policies._MAX_REMEMBERED", 2)
    policies = Policies([{"topic": "t[0-4]", "max_attempts": 5}])
    for _ in range(2):
        for number in range(10):
            assert (policies.for_channel(f"t{number}", "c") == Applied()) is (number > 4)
            assert len(policies._of_topics) <= 2


def test_the_first_matching_policy_with_a_setting_decides_it():
    policies = Policies(
        [
            {"channel": "slow", "max_rate": 1},
            {"topic": "orders", "max_attempts": 2},
            {"max_rate": 100, "max_attempts": 9},
        ]
    )
    slow = policies.for_channel("orders", "slow")
    assert slow.rate == Rate(1.0, 1)
    assert slow.dead_lettering is not None
    assert slow.dead_lettering.max_attempts == 2
    other = policies.for_channel("clicks", "fast")
    assert other.rate == Rate(100.0, 10)
    assert other.dead_lettering is not None
    assert other.dead_lettering.max_attempts == 9


def test_a_policy_for_channels_does_not_apply_to_the_topics_own_messages():
    policies = Policies([{"channel": ".*", "max_depth": 1}, {"topic": "orders", "max_depth": 2}])
    assert policies.for_channel("orders", "").bounds == Bounds(2, None, None, drops=False)
    assert policies.for_channel("clicks", "").bounds is None


def test_the_suffix_of_ephemeral_channels_is_left_out():
    dead_lettering = DeadLettering(1, "{topic}.{channel}.dead")
    assert dead_lettering.topic_for("t#ephemeral", "c#ephemeral") == "t.c.dead"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"max_attempt": 1}, "policy 1: max_attempt: unknown setting"),
        ({}, "policy 1: needs max_attempts, max_depth, max_bytes, max_age, max_rate, "
            "max_in_flight, exclusive, retain_for, retain_bytes, dedup_window, max_topics, max_channels or "
            "max_creations_per_second"),
        ({"when_full": "reject"}, "policy 1: when_full: has no effect without max_depth or max_bytes or max_age"),
        ({"max_depth": 1, "burst": 1}, "policy 1: burst: has no effect without max_rate"),
        ({"max_depth": 1, "dead_letter_topic": "d"}, "policy 1: dead_letter_topic: has no effect without max_attempts"),
        ({"max_attempts": 0}, "policy 1: max_attempts: must be an integer from 1 to 65535"),
        ({"max_attempts": True}, "policy 1: max_attempts: must be an integer from 1 to 65535"),
        ({"max_attempts": "5"}, "policy 1: max_attempts: must be an integer from 1 to 65535"),
        ({"max_depth": -1}, "policy 1: max_depth: must be an integer from 1 to 9223372036854775807"),
        ({"max_age": "tomorrow"}, 'policy 1: max_age: time: invalid duration "tomorrow"'),
        ({"max_age": "0s"}, 'policy 1: max_age: must be a duration above 0, such as "24h"'),
        ({"max_age": 5}, 'policy 1: max_age: must be a duration above 0, such as "24h"'),
        ({"max_depth": 1, "when_full": "drop"}, 'policy 1: when_full: must be "reject" or "drop-oldest"'),
        ({"max_rate": 0}, "policy 1: max_rate: must be a number above 0 (messages per second)"),
        ({"max_rate": float("nan")}, "policy 1: max_rate: must be a number above 0 (messages per second)"),
        ({"max_in_flight": 0}, "policy 1: max_in_flight: must be an integer from 1 to 9223372036854775807"),
        ({"max_attempts": 1, "when_expired": "keep"}, 'policy 1: when_expired: must be "drop" or "dead-letter"'),
        ({"max_rate": 1, "when_expired": "drop"}, "policy 1: when_expired: has no effect without max_attempts"),
        ({"exclusive": "yes"}, "policy 1: exclusive: must be true or false"),
        ({"dedup_window": "0s"}, 'policy 1: dedup_window: must be a duration above 0, such as "24h"'),
        ({"dedup_window": "1m", "channel": "c"}, "policy 1: channel: dedup_window is for topics"),
        ({"max_rate": 1, "topic": "("}, "policy 1: topic: not a regular expression: missing ): ("),
        ({"max_rate": 1, "channel": 5}, "policy 1: channel: must be a regular expression"),
    ],
)  # fmt: skip
def test_an_invalid_policy_is_refused_with_a_reason(written, text):
    assert complaint(written) == text


@pytest.mark.parametrize("topic", ["two words", "{topic}#ephemeral", "", "{message}", "x" * 65, 5])
def test_a_dead_letter_topic_must_have_a_valid_name(topic):
    assert complaint({"max_rate": 1}, {"max_attempts": 1, "dead_letter_topic": topic}).startswith(
        "policy 2: dead_letter_topic: must be the name of a topic"
    )


@pytest.mark.parametrize("written", [{"max_depth": 1}, "", "policies", 5, None, [5]])
def test_policies_are_a_list_of_tables(written):
    with pytest.raises(PolicyError, match="policies must be a list of tables"):
        Policies(written)
