"""A channel looked at: what waits, what is deferred, what consumers have, and none of it disturbed."""

from nsq_compat.protocol.message import attempts, body


def bodies(frames):
    return [body(frame) for frame in frames]


def test_every_kind_is_shown_and_nothing_is_taken(daemon, channel):
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a", b"b", b"c")
    daemon.publishes(b"later", defer=30.0)
    daemon.publishes(b"sooner", defer=20.0)
    consumer.takes(room=1)
    for _ in range(2):
        look = channel.look(10)
        assert bodies(look.waiting) == [b"b", b"c"]
        assert [(due - daemon.now, body(frame)) for due, frame in look.deferred] == [
            (20.0, b"sooner"),
            (30.0, b"later"),
        ]
        assert [(over - daemon.now, body(frame)) for over, frame in look.in_flight] == [(60.0, b"a")]
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (2, 2, 1)
    assert consumer.takes() == [b"b", b"c"]
    assert consumer.attempts(b"b") == 1


def test_no_more_of_a_kind_than_asked_for_and_of_in_flight_those_that_end_first(daemon, channel):
    slow, quick = daemon.consumer(timeout=90.0), daemon.consumer(timeout=30.0)
    daemon.publishes(*(b"%d" % number for number in range(10)))
    slow.takes(room=4)
    quick.takes(room=2)
    look = channel.look(3)
    assert (len(look.waiting), len(look.in_flight)) == (3, 3)
    assert bodies(frame for _, frame in look.in_flight)[:2] == [*quick.frames]


def test_a_message_put_off_says_which_attempt_is_next(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    consumer.requeues(b"a", delay=5.0)
    ((_, frame),) = channel.look(1).deferred
    assert (body(frame), attempts(frame)) == (b"a", 2)


def test_an_ephemeral_channel_is_looked_at_as_any_other(daemon):
    channel = daemon.channel("tail#ephemeral")
    daemon.publishes(b"a", b"b")
    assert bodies(channel.look(10).waiting) == [b"a", b"b"]
