"""SUB, RDY and CLS: becoming a consumer, being ready, and leaving."""

import pytest


def test_a_consumer_hears_nothing_before_it_is_ready(producer, consumer):
    producer.publishes(b"one")
    consumer.hears().says(b"RDY 1\n").hears(b"one")


def test_rdy_is_a_ceiling_for_what_is_in_flight_and_does_not_count_down(producer, consumer):
    producer.publishes(b"one", b"two", b"three", b"four", b"five", b"six")
    consumer.says(b"RDY 2\n").hears(b"one", b"two")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one")).hears(b"three")
    consumer.says(b"RDY 2\n").hears()
    consumer.says(b"RDY 4\n").hears(b"four", b"five")
    consumer.says(b"RDY 1\n").hears()
    consumer.says(b"".join(b"FIN %b\n" % consumer.id_of(body) for body in (b"two", b"three", b"four"))).hears()
    consumer.says(b"FIN %b\n" % consumer.id_of(b"five")).hears(b"six")


def test_a_finished_requeued_or_timed_out_message_makes_room(nsqd, producer, consumer):
    producer.publishes(b"one", b"two")
    consumer.says(b"RDY 1\n").hears(b"one")
    consumer.says(b"REQ %b 1000\n" % consumer.id_of(b"one")).hears(b"two")
    nsqd.waits(30)
    consumer.hears(b"_heartbeat_").says(b"NOP\n")
    nsqd.waits(30)
    assert consumer.bodies() == [b"one", b"two", b"one"]


@pytest.mark.parametrize(
    ("said", "count"), [(b"RDY", 1), (b"RDY ", 0), (b"RDY 0", 0), (b"RDY 007", 7), (b"RDY 2500", 2500)]
)
def test_how_ready_a_consumer_is_can_be_said_in_several_ways(consumer, said, count):
    consumer.says(b"RDY 3\n").says(said + b"\n").hears().and_stays()
    assert consumer.stats.ready_count == count


def test_a_run_of_fins_makes_room_for_as_many(producer, consumer):
    producer.publishes(*[b"%d" % number for number in range(6)])
    consumer.says(b"RDY 3\n").hears(b"0", b"1", b"2")
    consumer.says(b"".join(b"FIN %b\n" % message.id for message in consumer.received)).hears(b"3", b"4", b"5")
    assert consumer.stats.finish_count == 3


def test_every_channel_gets_every_message_and_each_consumer_of_one_a_share(nsqd, producer):
    alone = nsqd.connect().subscribes(channel=b"alone", ready=100)
    shared = [nsqd.connect().subscribes(channel=b"shared", ready=100) for _ in range(3)]
    bodies = [b"%d" % number for number in range(60)]
    producer.publishes(*bodies)
    assert alone.bodies() == bodies
    assert sorted(body for each in shared for body in each.bodies()) == sorted(bodies)
    assert min(len(each.bodies()) for each in shared) >= 15


def test_a_batch_is_shared_among_idle_consumers(nsqd, producer, build):
    shared = [nsqd.connect().subscribes(ready=100) for _ in range(3)]
    producer.says(build.mpub([b"%d" % number for number in range(60)])).hears(b"OK")
    assert [len(each.bodies()) for each in shared] == [20, 20, 20]


def test_a_consumer_that_does_not_read_leaves_the_messages_to_others(nsqd, producer):
    stuck, other = nsqd.connect().subscribes(ready=100), nsqd.connect().subscribes(ready=100)
    stuck.stops_reading()
    producer.publishes(b"one", b"two", b"three")
    other.hears(b"one", b"two", b"three")
    assert stuck.bodies() == []


def test_a_consumer_that_stalls_when_it_is_woken_passes_the_message_on(nsqd, producer):
    first, second = nsqd.connect().subscribes(ready=100), nsqd.connect().subscribes(ready=100)
    nsqd.broker.topics["t"].publish([b"one"], nsqd.now, nsqd.now_ns)
    first.session.stalled()
    second.flush()
    second.hears(b"one")


def test_a_consumer_gets_all_it_is_ready_for_however_many_batches_that_takes(producer, consumer, build):
    bodies = [b"%d" % number for number in range(2000)]
    producer.says(build.mpub(bodies)).hears(b"OK")
    consumer.says(b"RDY 1500\n")
    assert consumer.bodies() == bodies[:1500]


def test_consumers_beyond_the_limit_are_refused(make_nsqd):
    nsqd = make_nsqd(max_channel_consumers=2)
    first, second = nsqd.connect().subscribes(), nsqd.connect().subscribes()
    refusal = b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2"
    nsqd.connect().says(b"SUB t c\n").hears(refusal).and_is_closed()
    nsqd.connect().subscribes(channel=b"other")
    # A closing consumer still counts, a disconnected one does not.
    first.says(b"CLS\n").hears(b"CLOSE_WAIT")
    nsqd.connect().says(b"SUB t c\n").hears(refusal).and_is_closed()
    second.disconnects()
    nsqd.connect().subscribes()


def test_the_states_shown_in_stats_are_those_of_nsqd(client):
    assert client.stats.state == 0
    client.subscribes()
    assert client.stats.state == 3
    client.says(b"CLS\n").hears(b"CLOSE_WAIT")
    assert client.stats.state == 4


def test_a_mistake_does_not_subscribe(nsqd, client):
    client.says(b"SUB t bad!\n")
    assert nsqd.broker.topics == {}
    assert client.stats.state == 0


# --- CLS --------------------------------------------------------------------------------------------------------------


def test_after_cls_nothing_is_delivered_and_what_is_in_flight_can_be_answered(nsqd, producer, consumer):
    consumer.says(b"RDY 3\n")
    producer.publishes(b"one", b"two", b"three")
    consumer.hears(b"one", b"two", b"three").says(b"CLS\n").hears(b"CLOSE_WAIT")
    producer.publishes(b"four")
    consumer.says(b"TOUCH %b\n" % consumer.id_of(b"one"))
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one"))
    consumer.says(b"REQ %b 0\n" % consumer.id_of(b"two"))
    consumer.hears().and_stays()
    assert (consumer.stats.in_flight_count, consumer.stats.ready_count) == (1, 0)
    nsqd.connect().subscribes(ready=5).hears(b"four", b"two")


@pytest.mark.parametrize("said", [b"RDY 5\n", b"RDY x\n", b"RDY 99999\n", b"RDY\n"])
def test_after_cls_rdy_is_ignored_without_a_look(producer, consumer, said):
    consumer.says(b"CLS\n").hears(b"CLOSE_WAIT")
    consumer.says(said).hears().and_stays()
    producer.publishes(b"one")
    consumer.hears()


def test_cls_takes_effect_before_what_is_published_behind_it(client):
    client.subscribes(ready=10)
    client.says(b"CLS\nPUB t\n\0\0\0\3one").hears(b"CLOSE_WAIT", b"OK")


# --- Leaving ----------------------------------------------------------------------------------------------------------


def test_messages_of_a_disconnected_consumer_return_when_they_time_out(nsqd, producer):
    gone = nsqd.connect().identifies(msg_timeout=10_000).hears(b"OK").subscribes(ready=10)
    other = nsqd.connect().subscribes()
    producer.publishes(b"one", b"two")
    gone.hears(b"one", b"two").disconnects()
    other.says(b"RDY 10\n").hears()
    assert nsqd.broker.topics["t"].channels["c"].in_flight_count == 2
    nsqd.waits(9.9)
    other.hears().says(b"FIN %b\n" % gone.id_of(b"one")).hears(
        b"E_FIN_FAILED FIN %b failed client does not own message" % gone.id_of(b"one")
    )
    nsqd.waits(0.1)
    other.hears(b"one", b"two")
    assert [message.attempts for message in other.received] == [2, 2]
    assert nsqd.broker.topics["t"].channels["c"].timeout_count == 2


def test_a_consumer_that_is_refused_loses_what_it_had_in_flight_only_after_the_timeout(nsqd, producer):
    wrong = nsqd.connect().identifies(msg_timeout=1000).hears(b"OK").subscribes(ready=10)
    producer.publishes(b"one")
    wrong.hears(b"one").says(b"WRONG\n").hears(b"E_INVALID invalid command WRONG").and_is_closed()
    other = nsqd.connect().subscribes(ready=1).hears()
    nsqd.waits(1)
    other.hears(b"one")


def test_a_consumer_leaves_its_channel_when_it_disconnects(nsqd, consumer):
    channel = nsqd.broker.topics["t"].channels["c"]
    assert len(channel.consumers) == 1
    consumer.disconnects()
    assert len(channel.consumers) == 0
    consumer.session.closed()  # again: nothing is left to do


def test_an_ephemeral_channel_ends_with_its_last_consumer(nsqd, producer):
    first = nsqd.connect().subscribes(channel=b"c#ephemeral")
    second = nsqd.connect().subscribes(channel=b"c#ephemeral")
    first.disconnects()
    assert "c#ephemeral" in nsqd.broker.topics["t"].channels
    second.disconnects()
    assert nsqd.broker.topics["t"].channels == {}


def test_an_ephemeral_topic_ends_with_its_last_channel(nsqd, producer):
    consumer = nsqd.connect().subscribes(b"t#ephemeral", b"c#ephemeral")
    producer.publishes(b"one", topic=b"t#ephemeral")
    consumer.disconnects()
    assert nsqd.broker.topics == {}
    producer.publishes(b"two", topic=b"t#ephemeral")
    nsqd.connect().subscribes(b"t#ephemeral", b"c#ephemeral", ready=10).hears(b"two")


def test_a_cls_does_not_end_an_ephemeral_channel(nsqd):
    consumer = nsqd.connect().subscribes(channel=b"c#ephemeral").says(b"CLS\n")
    assert "c#ephemeral" in nsqd.broker.topics["t"].channels
    consumer.stops_sending()
    assert nsqd.broker.topics["t"].channels == {}


# --- What others do to a channel --------------------------------------------------------------------------------------


def test_a_paused_channel_delivers_nothing_until_it_goes_on(nsqd, producer, consumer):
    channel = nsqd.broker.topics["t"].channels["c"]
    consumer.says(b"RDY 10\n")
    channel.pause()
    producer.publishes(b"one", b"two")
    consumer.says(b"RDY 11\n").hears()
    channel.unpause()
    nsqd.turns()
    consumer.hears(b"one", b"two")


def test_timeouts_go_on_while_a_channel_is_paused(nsqd, producer):
    consumer = nsqd.connect().identifies(msg_timeout=1000).hears(b"OK").subscribes(ready=10)
    producer.publishes(b"one")
    consumer.hears(b"one")
    channel = nsqd.broker.topics["t"].channels["c"]
    channel.pause()
    nsqd.waits(2)
    consumer.hears()
    assert (channel.depth, channel.in_flight_count) == (1, 0)
    channel.unpause()
    nsqd.turns()
    consumer.hears(b"one")


def test_a_paused_topic_keeps_what_is_published(nsqd, producer, consumer):
    topic = nsqd.broker.topics["t"]
    consumer.says(b"RDY 10\n")
    producer.publishes(b"before")
    topic.pause()
    producer.publishes(b"one")
    producer.says(b"DPUB t 100\n\0\0\0\3two").hears(b"OK")
    consumer.hears(b"before")
    topic.unpause()
    nsqd.turns()
    consumer.hears(b"one")
    nsqd.waits(1)
    consumer.hears(b"two")


def test_emptying_a_channel_takes_away_what_is_in_flight_too(nsqd, producer, consumer):
    producer.publishes(b"one", b"two", b"three")
    consumer.says(b"RDY 2\n").hears(b"one", b"two")
    nsqd.broker.topics["t"].channels["c"].empty()
    nsqd.turns()
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one")).hears(
        b"E_FIN_FAILED FIN %b failed ID not in flight" % consumer.id_of(b"one")
    )
    assert consumer.stats.in_flight_count == 0
    producer.publishes(b"four", b"five", b"six")
    consumer.hears(b"four", b"five")


def test_deleting_a_channel_drops_its_consumers_without_a_word(nsqd, producer, consumer):
    other = nsqd.connect().subscribes(channel=b"other")
    nsqd.broker.topics["t"].delete_channel("c")
    nsqd.turns()
    consumer.hears().and_is_closed()
    other.and_stays()
    nsqd.connect().subscribes(ready=1).hears()


def test_deleting_a_topic_drops_its_consumers_and_leaves_producers_alone(nsqd, producer, consumer):
    producer.publishes(b"one")
    nsqd.broker.delete_topic("t")
    nsqd.turns()
    consumer.hears().and_is_closed()
    producer.and_stays().publishes(b"two")
    nsqd.connect().subscribes(ready=10).hears(b"two")


@pytest.mark.interpreted
def test_fins_for_a_deleted_channel_are_not_an_internal_error(nsqd, producer):
    consumer = nsqd.connect().subscribes(ready=10)
    producer.publishes(b"one", b"two", b"three")
    # Read in the turn in which the channel goes, before the connection is closed.
    consumer.session.close = lambda: None
    nsqd.broker.delete_topic("t")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one"))
    consumer.says(b"REQ %b 0\n" % consumer.id_of(b"two"))
    consumer.says(b"TOUCH %b\n" % consumer.id_of(b"three"))
    consumer.disconnects()


# --- Sampling ---------------------------------------------------------------------------------------------------------


def test_a_sample_of_99_percent_is_everything(nsqd, producer):
    consumer = nsqd.connect().identifies(sample_rate=99).hears(b"OK").subscribes(ready=2500)
    producer.publishes(*[b"%d" % number for number in range(500)])
    assert len(consumer.bodies()) == 500


def test_unsampled_messages_are_finished_for_the_channel(nsqd, producer, build):
    consumer = nsqd.connect().identifies(sample_rate=49).hears(b"OK").subscribes(ready=2500)
    channel = nsqd.broker.topics["t"].channels["c"]
    producer.says(build.mpub([b"%d" % number for number in range(2000)])).hears(b"OK")
    drawn = len(consumer.bodies())
    assert 800 < drawn < 1200
    assert (channel.depth, channel.in_flight_count, channel.message_count) == (0, drawn, 2000)
    assert (consumer.stats.in_flight_count, consumer.stats.message_count) == (drawn, drawn)
    assert consumer.stats.finish_count == 0


@pytest.mark.parametrize("ready", [1, 7])
def test_a_sample_goes_through_the_whole_channel_however_little_the_consumer_is_ready_for(nsqd, producer, build, ready):
    consumer = nsqd.connect().identifies(sample_rate=20).hears(b"OK").subscribes(ready=ready)
    channel = nsqd.broker.topics["t"].channels["c"]
    producer.says(build.mpub([b"%d" % number for number in range(500)])).hears(b"OK")
    while channel.depth:
        assert consumer.stats.in_flight_count == ready
        consumer.says(b"FIN %b\n" % consumer.received[-ready].id)
    # Also when the last messages were not drawn: what comes now is looked at.
    before = channel.message_count
    producer.publishes(*[b"x"] * 50)
    assert channel.message_count == before + 50
    assert channel.depth == 0 or consumer.stats.in_flight_count == ready


def test_stats_show_a_consumer(nsqd, producer, consumer):
    consumer.says(b"RDY 3\n")
    producer.publishes(b"one", b"two", b"three")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one")).says(b"REQ %b 10000\n" % consumer.id_of(b"two"))
    stats = consumer.stats
    assert (stats.ready_count, stats.in_flight_count, stats.message_count) == (3, 1, 3)
    assert (stats.finish_count, stats.requeue_count) == (1, 1)
    assert (stats.version, stats.remote_address) == ("V2", "127.0.0.1:5000")
    assert stats.connect_ts == 1_700_001_000


# --- Near and far -----------------------------------------------------------------------------------------------------


@pytest.fixture
def zoned(make_nsqd):
    """A daemon in zone z of region r that serves those nearby first."""
    return make_nsqd(topology_aware=True, topology_zone="z", topology_region="r")


def local_counts(client):
    stats = client.stats
    return stats.zone_local_msg_count, stats.region_local_msg_count, stats.global_msg_count


def test_messages_go_to_the_zone_then_to_the_region_then_anywhere(zoned):
    anywhere = zoned.connect().identifies(topology_region="R").hears(b"OK").subscribes(ready=1)
    region = zoned.connect().identifies(topology_region="r").hears(b"OK").subscribes(ready=1)
    zone = zoned.connect().identifies(topology_zone="z").hears(b"OK").subscribes(ready=1)
    producer = zoned.connect().publishes(b"one")
    zone.hears(b"one")
    producer.publishes(b"two")
    region.hears(b"two")
    producer.publishes(b"three")
    anywhere.hears(b"three")
    assert [local_counts(client) for client in (zone, region, anywhere)] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]


def test_a_client_without_zone_and_region_is_global(make_nsqd):
    nsqd = make_nsqd(topology_aware=True)
    client = nsqd.connect().identifies().hears(b"OK").subscribes(ready=1)
    nsqd.connect().publishes(b"one")
    assert local_counts(client) == (0, 0, 1)


def test_a_second_identify_does_not_change_the_locality(zoned):
    client = zoned.connect().identifies(topology_zone="z").hears(b"OK").identifies().hears(b"OK").subscribes(ready=1)
    zoned.connect().publishes(b"one")
    assert local_counts(client) == (1, 0, 0)


def test_localities_are_counted_only_in_a_topology_aware_channel(nsqd, consumer):
    consumer.says(b"RDY 1\n")
    nsqd.connect().publishes(b"one")
    assert local_counts(consumer) == (0, 0, 0)
