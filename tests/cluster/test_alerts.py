"""Alerts, rule by rule."""

from nsq_compat.cluster.alerts import Severity, find_alerts
from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.history import History
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import ChannelStats, ClientStats, NodeStats, TopicStats, read_node_stats, sum_channel

NODE = Node(broadcast_address="n", hostname="h", tcp_port=1, http_port=2, version="1.0.0")
WELL = {"n:2": NodeStats(health="OK", start_time=1, topics=[])}


def found(*channels, topic=None, nodes=(), answers=None, history=None):
    topic = topic or TopicStats(topic_name="t", nodes=[TopicStats()], channels=list(channels))
    answers = answers or {}
    silent = tuple(node.http_address for node in nodes if node.http_address not in answers)
    snapshot = Snapshot(taken_at=100.0, topics=(topic,), nodes=nodes, node_stats=answers, unreachable=silent)
    return [(alert.severity, alert.kind, alert.text) for alert in find_alerts(snapshot, history or History())]


def channel(**fields):
    return ChannelStats(topic_name="t", channel_name="c", **fields)


def growing(*depths):
    history = History()
    for step, depth in enumerate(depths):
        topic = TopicStats(topic_name="t", nodes=[TopicStats()], channels=[channel(depth=depth)])
        history.add(Snapshot(taken_at=100.0 + 10 * step, topics=(topic,)))
    return history


def test_a_healthy_cluster_has_no_alerts():
    assert found(channel(depth=5, client_count=1), nodes=(NODE,), answers=WELL) == []
    assert found(channel(depth=0)) == []


def test_messages_without_a_consumer_are_serious_when_they_grow():
    assert found(channel(depth=1)) == [(Severity.WARNING, "no-consumer", "1 message and no consumer")]
    assert found(channel(depth=30), history=growing(10, 20, 30)) == [
        (Severity.SERIOUS, "no-consumer", "30 messages and no consumer, growing by 1.0 a second")
    ]


def test_an_alert_shows_the_age_of_the_oldest_message():
    history = History()
    for published, words in (
        (-3600.0, ", oldest published 1 hour ago"),
        (-50.0, ", oldest published 2 minutes ago"),
        (90.0, ""),
    ):
        history.oldest = {("t", "c"): published}
        assert found(channel(depth=1), history=history)[0][2] == f"1 message and no consumer{words}"


def test_a_growing_backlog_is_a_warning_from_a_thousand_messages_on():
    history = growing(1000, 2000)
    assert found(channel(depth=2000, client_count=1), history=history)[0][:2] == (Severity.WARNING, "behind")
    assert found(channel(depth=20, client_count=1), history=history) == []


def test_consumers_that_are_all_at_rdy_0_are_a_warning():
    for ready, found_alert in ((0, True), (1, False)):
        clients = [ClientStats(ready_count=0), ClientStats(ready_count=ready)]
        topic = TopicStats(topic_name="t", channels=[channel(depth=3, client_count=2, clients=clients)])
        history = History()
        history.add(Snapshot(taken_at=90.0, topics=(topic,), with_clients=True))
        # A later snapshot without clients does not change it.
        history.add(Snapshot(taken_at=100.0))
        expected = [(Severity.WARNING, "not-ready", "3 messages, and all 2 consumers are at RDY 0")]
        assert found(channel(depth=3, client_count=2), history=history) == (expected if found_alert else [])


def test_a_paused_topic_or_channel_is_a_note():
    assert found(channel(depth=3, paused=True)) == [(Severity.NOTE, "paused", "paused, 3 messages waiting")]
    topic = TopicStats(topic_name="t", paused=True)
    assert found(topic=topic) == [(Severity.NOTE, "paused", "paused, 0 messages waiting")]


def test_dropped_messages_are_a_warning():
    assert found(channel(dropped_count=4))[0][:2] == (Severity.WARNING, "dropped")
    assert found(topic=TopicStats(topic_name="t", dropped_count=4))[0][:2] == (Severity.WARNING, "dropped")


def test_effects_of_policies_are_warnings():
    assert found(channel(dead_letter_count=1, rejected_count=2, dropped_count=3)) == [
        (Severity.WARNING, "dropped", "3 messages dropped because of a policy"),
        (Severity.WARNING, "refused", "2 messages refused because the channel was full"),
    ]
    ephemeral = ChannelStats(topic_name="t", channel_name="c#ephemeral", dropped_count=3)
    assert found(ephemeral)[0][2] == "3 messages dropped because memory was full"


def test_a_topic_without_channels_is_a_warning():
    topic = TopicStats(topic_name="t", depth=1)
    assert found(topic=topic) == [(Severity.WARNING, "no-channel", "1 message and no channel")]


def test_unreachable_unhealthy_and_outdated_nodes_are_alerts():
    assert found(nodes=(NODE,)) == [(Severity.SERIOUS, "unreachable", "does not answer")]
    ill = {"n:2": NodeStats(health="NOK - disk full", start_time=1, topics=[])}
    assert found(nodes=(NODE,), answers=ill) == [(Severity.SERIOUS, "unhealthy", "NOK - disk full")]
    old = Node(broadcast_address="n", hostname="h", tcp_port=1, http_port=2, version="1.0.0", out_of_date=True)
    assert found(nodes=(old,), answers=WELL)[0][:2] == (Severity.NOTE, "out-of-date")


def test_a_read_error_is_shown_in_the_words_of_the_node_and_before_a_deep_channel():
    reason = "NOK - cannot read /data/nsq_compat/orders.topic/log.00000000000000000001: input/output error"
    answers = {"n:2": read_node_stats(NODE, {"health": reason, "start_time": 1, "topics": []})}
    behind = channel(depth=5000, client_count=1)
    assert found(behind, nodes=(NODE,), answers=answers, history=growing(0, 5000)) == [
        (Severity.SERIOUS, "unhealthy", reason),
        (Severity.WARNING, "behind", "5,000 messages behind, growing by 500.0 a second"),
    ]


def test_alerts_are_sorted_by_severity_and_depth():
    topic = TopicStats(
        topic_name="t",
        channels=[ChannelStats(topic_name="t", channel_name=name, depth=depth) for name, depth in (("a", 1), ("b", 9))],
    )
    snapshot = Snapshot(taken_at=1.0, topics=(topic,), unreachable=("n:2",))
    assert [alert.channel or alert.node for alert in find_alerts(snapshot, History())] == ["n:2", "b", "a"]


def test_a_silent_nsqlookupd_is_a_warning_and_serious_if_no_other_answers():
    def of(**fields):
        snapshot = Snapshot(taken_at=1.0, silent_lookupds=("l:1",), **fields)
        return [(alert.severity, alert.kind, alert.lookupd, alert.text) for alert in find_alerts(snapshot, History())]

    assert of(nodes=(NODE,)) == [(Severity.WARNING, "no-lookupd", "l:1", "nsqlookupd does not answer; others do")]
    words = "nsqlookupd does not answer, and no other does: consumers find no nodes, and "
    assert of(nodes=(NODE,), all_lookupds_silent=True) == [
        (Severity.SERIOUS, "no-lookupd", "l:1", words + "the nodes shown are those known before")
    ]
    assert of(all_lookupds_silent=True)[0][3] == words + "no node is known"


def test_a_single_consumer_at_rdy_0_is_one_consumer():
    history = History()
    history.not_ready = frozenset({("t", "c")})
    assert found(channel(depth=1, client_count=1), history=history)[0][2] == "1 message, and its consumer is at RDY 0"


def test_dead_letters_are_a_warning_while_their_topic_has_messages():
    own = channel(dead_letter_count=3, policy={"dead_letter_topic": "graves"})
    for name in ("graves", "t.c.dead"):
        for held in (2, 0):
            dead = TopicStats(topic_name=name, channels=[ChannelStats(topic_name=name, in_flight_count=held)])
            topics = (TopicStats(topic_name="t", channels=[own]), dead)
            alerts = find_alerts(Snapshot(taken_at=1.0, topics=topics), History())
            expected = [("c", f"2 messages in its dead-letter topic {name}", name)] if held else []
            assert [(alert.channel, alert.text, alert.dead_letter_topic) for alert in alerts] == expected


def test_refused_and_dropped_messages_are_a_warning_for_an_hour_or_until_they_are_dismissed():
    history = History()

    def at(second, **counts):
        parts = [channel(node=node, rejected_count=count) for node, count in counts.items()]
        topic = TopicStats(topic_name="t", nodes=[TopicStats()], channels=[sum_channel("c", parts)])
        snapshot = Snapshot(taken_at=float(second), topics=(topic,))
        history.add(snapshot)
        return [alert.text for alert in find_alerts(snapshot, history)]

    words = "messages refused because the channel was full"
    assert at(0, a=2) == [f"2 {words}"]
    assert at(3590, a=2) == [f"2 {words}"], "it is not known when they were refused"
    assert at(3610, a=2) == []
    assert at(4000, a=5, b=4) == [f"9 {words}"]
    assert at(4120, a=5, b=4) == [f"9 {words}, the last 2 minutes ago"]
    assert at(4200, b=4) == [f"4 {words}, the last 3 minutes ago"]
    assert at(4300, a=5, b=4) == [f"9 {words}, the last 5 minutes ago"], "the node was only missing"
    assert history.dismiss_losses("refused", ("t", "c"))
    assert at(4310, a=5, b=4) == []
    assert at(4320, a=1, b=4) == [f"5 {words}"], "after a restart of a node"
    assert not history.dismiss_losses("dropped", ("t", "c"))


# --- Mirroring --------------------------------------------------------------------------------------------------------


def mirroring(standby=None, *primaries):
    """The answer of a node with this standby, and with copies of these primaries."""
    known = {"standby": standby, "accepts": bool(primaries), "primaries": list(primaries)}
    return {"n:2": read_node_stats(NODE, {"health": "OK", "nsq_compat": {"mirroring": known}})}


def primary(**fields):
    at = {"identity": "1" * 32, "address": "p:1", "broadcast_address": "p", "http_port": 2, "last_seen": 88}
    return {**at, "connected": False, "complete": True, **fields}


def test_a_node_that_is_not_mirrored_is_a_warning_and_serious_if_it_refuses_messages():
    standby = {"address": "s:1", "state": "in sync", "seconds": 12.7, "when_lost": "continue"}
    assert found(nodes=(NODE,), answers=mirroring(standby)) == []
    lost = standby | {"state": "not connected"}
    text = "not mirrored for 12 s: its standby s:1 is not connected"
    assert found(nodes=(NODE,), answers=mirroring(lost)) == [(Severity.WARNING, "not-mirrored", text)]
    refusing = lost | {"when_lost": "refuse"}
    assert found(nodes=(NODE,), answers=mirroring(refusing)) == [
        (Severity.SERIOUS, "not-mirrored", f"{text}, and publishes are refused")
    ]
    catching_up = standby | {"state": "catching up"}
    assert found(nodes=(NODE,), answers=mirroring(catching_up)) == [
        (Severity.WARNING, "not-mirrored", "not mirrored yet: its standby s:1 has been catching up for 12 s")
    ]


def test_a_copy_without_its_primary_is_serious_until_it_is_taken_over():
    text = "has a copy of p:1, which is not connected and was last seen 12 s ago"
    assert found(nodes=(NODE,), answers=mirroring(None, primary())) == [(Severity.SERIOUS, "primary-gone", text)]
    incomplete = mirroring(None, primary(complete=False))
    assert found(nodes=(NODE,), answers=incomplete)[0][2] == text.replace("a copy", "an incomplete copy")
    for other in (primary(connected=True), primary(taken_over=["t"]), primary(taken_over=[])):
        assert found(nodes=(NODE,), answers=mirroring(None, other)) == []


def test_a_primary_that_answers_is_not_called_gone_by_its_standby():
    other = Node(broadcast_address="p", hostname="p", tcp_port=1, http_port=2)
    answers = {**mirroring(None, primary()), "p:2": NodeStats(health="OK")}
    assert found(nodes=(NODE, other), answers=answers) == []
