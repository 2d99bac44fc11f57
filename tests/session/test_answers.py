"""FIN, REQ and TOUCH: which consumer may send them, their effect, and when a message returns."""

import random

import pytest

from nsq_compat.queue.values import LatencyOptions

NOT_IN_FLIGHT = b"ID not in flight"
NOT_OWNER = b"client does not own message"
ANSWERS = [(b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b"")]


@pytest.fixture
def patient(nsqd):
    """A consumer with a message timeout of two seconds, ready for ten messages."""
    return nsqd.connect().identifies(msg_timeout=2000).hears(b"OK").subscribes(ready=10)


@pytest.fixture
def other(nsqd):
    """Another consumer of the same channel, not ready."""
    return nsqd.connect().subscribes()


def failed(name, message_id, reason):
    return b"E_%b_FAILED %b %b failed %b" % (name, name, message_id, reason)


# --- Which consumer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "delay"), ANSWERS)
def test_only_the_consumer_of_a_message_can_finish_it(producer, patient, other, name, delay):
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    other.says(b"%b %b%b\n" % (name, message_id, delay)).hears(failed(name, message_id, NOT_OWNER)).and_stays()
    patient.hears(b"one").says(b"FIN %b\n" % message_id).hears()


@pytest.mark.parametrize(("name", "delay"), ANSWERS)
def test_a_finished_message_cannot_be_finished_again(producer, patient, name, delay):
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    patient.hears(b"one").says(b"FIN %b\n" % message_id).hears()
    patient.says(b"%b %b%b\n" % (name, message_id, delay)).hears(failed(name, message_id, NOT_IN_FLIGHT)).and_stays()


@pytest.mark.parametrize(("name", "delay"), ANSWERS)
def test_a_message_of_another_channel_is_not_in_flight_in_this_one(nsqd, producer, patient, name, delay):
    stranger = nsqd.connect().subscribes(channel=b"elsewhere")
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    stranger.says(b"%b %b%b\n" % (name, message_id, delay)).hears(failed(name, message_id, NOT_IN_FLIGHT))


@pytest.mark.parametrize(("name", "delay"), ANSWERS)
def test_a_deferred_message_is_not_in_flight(producer, patient, name, delay):
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    patient.hears(b"one").says(b"REQ %b 1000\n" % message_id).hears()
    patient.says(b"%b %b%b\n" % (name, message_id, delay)).hears(failed(name, message_id, NOT_IN_FLIGHT))


def test_a_run_of_fins_finishes_what_it_can_and_names_the_rest_in_order(producer, patient, other):
    producer.publishes(b"one", b"two", b"three")
    one, two, three = (message.id for message in patient.received)
    stranger = b"0123456789abcdef"
    patient.hears(b"one", b"two", b"three")
    patient.says(b"".join(b"FIN %b\n" % each for each in (one, stranger, two, one, three))).hears(
        failed(b"FIN", stranger, NOT_IN_FLIGHT), failed(b"FIN", one, NOT_IN_FLIGHT)
    )
    assert patient.stats.finish_count == 3


def test_a_message_belongs_to_the_consumer_of_its_last_delivery(nsqd, producer, patient, other):
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    patient.hears(b"one").says(b"RDY 0\n")
    other.says(b"RDY 1\n")
    nsqd.waits(2)
    other.hears(b"one")
    patient.says(b"FIN %b\n" % message_id).hears(failed(b"FIN", message_id, NOT_OWNER))
    other.says(b"FIN %b\n" % message_id).hears()


def test_a_late_fin_finishes_the_message_when_the_same_consumer_got_it_again(nsqd, producer, patient):
    producer.publishes(b"one")
    nsqd.waits(2)
    patient.hears(b"one", b"one").says(b"FIN %b\n" % patient.id_of(b"one")).hears()
    nsqd.waits(10)
    patient.hears()


# --- Timeouts ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_when_it_times_out_and_says_so(nsqd, producer, patient):
    producer.publishes(b"one")
    nsqd.waits(1.999)
    patient.hears(b"one")
    nsqd.waits(0.001)
    patient.hears(b"one")
    first, second = patient.received
    assert (first.attempts, second.attempts) == (1, 2)
    assert (first.id, first.timestamp_ns) == (second.id, second.timestamp_ns)
    assert nsqd.broker.topics["t"].channels["c"].timeout_count == 1
    assert patient.stats.requeue_count == 0


def test_a_finished_message_never_comes_back(nsqd, producer, patient):
    producer.publishes(b"one", b"two")
    patient.says(b"FIN %b\n" % patient.id_of(b"one"))
    nsqd.waits(2)
    patient.hears(b"one", b"two", b"two")


def test_a_timeout_makes_room(nsqd, producer):
    consumer = nsqd.connect().identifies(msg_timeout=2000).hears(b"OK").subscribes(ready=1)
    producer.publishes(b"one", b"two")
    consumer.hears(b"one")
    nsqd.waits(2)
    consumer.hears(b"two")
    assert nsqd.broker.topics["t"].channels["c"].depth == 1


def test_by_default_a_message_times_out_after_the_daemons_msg_timeout(make_nsqd):
    nsqd = make_nsqd(msg_timeout_ms=3000)
    consumer, producer = nsqd.connect().subscribes(ready=1), nsqd.connect()
    producer.publishes(b"one")
    nsqd.waits(2.9)
    consumer.hears(b"one")
    nsqd.waits(0.2)
    consumer.hears(b"one")


# --- REQ --------------------------------------------------------------------------------------------------------------


def test_a_requeued_message_comes_back_with_one_more_attempt(producer, patient):
    producer.publishes(b"one")
    patient.hears(b"one").says(b"REQ %b 0\n" % patient.id_of(b"one")).hears(b"one")
    assert [message.attempts for message in patient.received] == [1, 2]
    assert patient.stats.requeue_count == 1
    assert patient.stats.in_flight_count == 1


def test_a_message_requeued_without_delay_goes_to_the_end(producer, consumer):
    producer.publishes(b"one", b"two", b"three")
    consumer.says(b"RDY 1\n").hears(b"one")
    consumer.says(b"REQ %b 0\n" % consumer.id_of(b"one")).hears(b"two")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"two")).hears(b"three")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"three")).hears(b"one")


def test_a_message_requeued_with_a_delay_is_delivered_after_it(nsqd, producer, patient):
    producer.publishes(b"one")
    patient.hears(b"one").says(b"REQ %b 500\n" % patient.id_of(b"one"))
    assert nsqd.broker.topics["t"].channels["c"].deferred_count == 1
    nsqd.waits(0.499)
    patient.hears()
    nsqd.waits(0.002)
    patient.hears(b"one")


def test_a_requeued_message_may_go_to_another_consumer(nsqd, producer, patient, other):
    producer.publishes(b"one")
    message_id = patient.id_of(b"one")
    other.says(b"RDY 1\n")
    patient.hears(b"one").says(b"RDY 0\n").says(b"REQ %b 0\n" % message_id).hears()
    other.hears(b"one")
    patient.says(b"TOUCH %b\n" % message_id).hears(failed(b"TOUCH", message_id, NOT_OWNER))


@pytest.mark.parametrize("delay", [b"2001", b"999999999", b"99999999999999999999999"])
def test_a_delay_beyond_the_limit_is_cut_to_it(make_nsqd, delay):
    nsqd = make_nsqd(max_req_timeout_ms=2000)
    consumer, producer = nsqd.connect().subscribes(ready=1), nsqd.connect()
    producer.publishes(b"one")
    consumer.hears(b"one").says(b"REQ %b %b\n" % (consumer.id_of(b"one"), delay)).hears()
    nsqd.waits(1.9)
    consumer.hears()
    nsqd.waits(0.2)
    consumer.hears(b"one").and_stays()


@pytest.mark.parametrize("delay", [b"0", b"", b"00"])
def test_no_delay_can_be_said_in_several_ways(producer, patient, delay):
    producer.publishes(b"one")
    patient.hears(b"one").says(b"REQ %b %b\n" % (patient.id_of(b"one"), delay)).hears(b"one")


def test_a_requeued_message_is_timed_anew(nsqd, producer, patient):
    producer.publishes(b"one")
    nsqd.waits(1.5)
    patient.hears(b"one").says(b"REQ %b 0\n" % patient.id_of(b"one")).hears(b"one")
    nsqd.waits(1.9)
    patient.hears()
    nsqd.waits(0.2)
    patient.hears(b"one")


# --- TOUCH ------------------------------------------------------------------------------------------------------------


def test_a_touch_gives_the_whole_timeout_again(nsqd, producer, patient):
    producer.publishes(b"one", b"two")
    patient.hears(b"one", b"two")
    nsqd.waits(1.5)
    patient.says(b"TOUCH %b\n" % patient.id_of(b"one")).hears()
    nsqd.waits(1.9)
    patient.hears(b"two")
    nsqd.waits(0.2)
    patient.hears(b"one")


def test_touches_do_not_exceed_the_maximum_timeout(make_nsqd):
    nsqd = make_nsqd(max_msg_timeout=4.0, max_msg_timeout_ms=4000)
    consumer = nsqd.connect().identifies(msg_timeout=2000).hears(b"OK").subscribes(ready=1)
    nsqd.connect().publishes(b"one")
    consumer.hears(b"one")
    for _ in range(7):
        nsqd.waits(0.5)
        consumer.says(b"TOUCH %b\n" % consumer.id_of(b"one")).hears()
    nsqd.waits(0.4)
    consumer.hears()
    nsqd.waits(0.2)
    consumer.hears(b"one")


def test_a_touched_message_can_be_finished_and_requeued(nsqd, producer, patient):
    producer.publishes(b"one", b"two")
    one, two = patient.id_of(b"one"), patient.id_of(b"two")
    patient.hears(b"one", b"two").says(b"TOUCH %b\nTOUCH %b\nFIN %b\nREQ %b 0\n" % (one, two, one, two)).hears(b"two")
    nsqd.waits(1.9)
    patient.hears()
    nsqd.waits(0.2)
    patient.hears(b"two")
    assert [message.attempts for message in patient.received] == [1, 1, 2, 3]


def test_messages_of_a_disconnected_consumer_time_out_in_spite_of_touches(nsqd, producer, patient, other):
    producer.publishes(b"one")
    nsqd.waits(1)
    patient.hears(b"one").says(b"TOUCH %b\n" % patient.id_of(b"one")).disconnects()
    other.says(b"RDY 1\n")
    nsqd.waits(1.9)
    other.hears()
    nsqd.waits(0.2)
    other.hears(b"one")


# --- How long it took -------------------------------------------------------------------------------------------------


def latency_of(nsqd):
    return nsqd.broker.topic("t").channel("c").latency.stats(nsqd.now)


@pytest.fixture
def watching(make_nsqd):
    """A daemon that was asked for a percentile of its latency."""
    return make_nsqd(latency=LatencyOptions((1.0,), 600.0))


def test_the_time_from_publish_to_fin_is_measured(watching):
    consumer = watching.connect().subscribes(ready=10)
    watching.connect().publishes(b"one", b"two", b"three")
    consumer.hears(b"one", b"two", b"three")
    watching.waits(2)
    consumer.says(b"FIN %b\nFIN %b\n" % (consumer.id_of(b"one"), consumer.id_of(b"two")))
    ((quantile, value),) = latency_of(watching).percentiles
    assert latency_of(watching).count == 2
    assert (quantile, value) == (1.0, pytest.approx(2e9, rel=0.01))


def test_failed_and_repeated_fins_are_not_measured(watching):
    consumer = watching.connect().subscribes(ready=10)
    watching.connect().publishes(b"one")
    consumer.hears(b"one")
    consumer.says(b"FIN %b\n" % consumer.id_of(b"one") * 2 + b"FIN 0123456789abcdef\n")
    assert latency_of(watching).count == 1


def test_requeued_and_unsampled_messages_are_not_measured(watching, monkeypatch):
    sampling = watching.connect().identifies(sample_rate=50).hears(b"OK").subscribes(ready=10)
    monkeypatch.setattr(random, "randrange", lambda _: 99)
    watching.connect().publishes(b"one")
    sampling.hears().disconnects()
    consumer = watching.connect().subscribes(ready=10)
    watching.connect().publishes(b"two")
    consumer.hears(b"two").says(b"REQ %b 1000\n" % consumer.id_of(b"two"))
    assert latency_of(watching).count == 0


def test_time_is_not_measured_unless_asked_for(nsqd, consumer):
    assert nsqd.broker.topic("t").channel("c").latency is None
