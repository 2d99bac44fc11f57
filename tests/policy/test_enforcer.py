"""With policies no message is lost: each is delivered, counted, or in the dead-letter topic."""

from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.policy.dead_letters import REDRIVE_CHANNEL
from nsq_compat.policy.limits import Full

DEAD = "orders.archive.dead"
SETTINGS = st.fixed_dictionaries(
    {
        "max_attempts": st.sampled_from([None, 1, 2]),
        "max_depth": st.sampled_from([None, 2, 8]),
        "max_rate": st.sampled_from([None, 5, 5000]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "take", "fail"]), st.integers(1, 6)),
        st.tuples(st.sampled_from(["finish", "requeue", "defer", "send"]), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 30, 61])),
        st.tuples(st.just("policies"), SETTINGS),
    ),
    min_size=10,  # few steps lead nowhere
    max_size=60,
)


@given(first=SETTINGS, drops=st.booleans(), steps=STEPS)
def test_every_message_has_one_state_or_is_counted(start, first, drops, steps):
    daemon = start()
    channel, consumer = daemon.channel(), daemon.consumer(timeout=60.0)
    published = finished = refused = 0
    held: list[bytes] = []

    def apply(settings):
        full = {"max_depth": {"when_full": "drop-oldest" if drops else "reject"}}
        given = {name: value for name, value in settings.items() if value is not None}
        daemon.follows(*({"topic": "orders", name: value, **full.get(name, {})} for name, value in given.items()))

    apply(first)
    for step, argument in steps:
        if step == "publish":
            bodies = [b"%d" % (published + number) for number in range(argument)]
            try:
                daemon.publishes(*bodies)
                published += argument
            except Full:
                refused += argument
        elif step == "take":
            held += consumer.takes(argument)
        elif step == "fail":
            for body in consumer.takes(argument):
                consumer.requeues(body)
        elif step in ("finish", "requeue", "defer") and (held := still_held(consumer, held)):
            body = held.pop(0)
            if step == "finish":
                consumer.finishes(body)
                finished += 1
            else:
                consumer.requeues(body, 5.0 if step == "defer" else 0.0)
        elif step == "send":
            assert daemon.sends_dead_letters()
        elif step == "wait":
            daemon.waits(argument)
        elif step == "policies":
            apply(argument)
        here = channel.depth + channel.in_flight_count + channel.deferred_count
        assert published == here + finished + channel.dropped_count + channel.dead_letter_count
        assert refused == channel.rejected_count
        dead = daemon.broker.topics.get(DEAD)
        assert channel.dead_letter_count == (dead.channels[REDRIVE_CHANNEL].depth if dead else 0)


def still_held(consumer, bodies):
    return [body for body in dict.fromkeys(bodies) if consumer.id_of(body) in consumer.in_flight.frames]
