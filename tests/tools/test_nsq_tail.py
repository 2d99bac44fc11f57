"""nsq_tail as a process before a real nsqd: what it does not show is left as it was."""

import pytest

from nsq_compat.client import Consumer, Producer
from tests.client.waiting import wait_until


@pytest.fixture
def tail(run, nsqd):
    """Runs nsq_tail to its end; the lines it showed."""

    def shown(*topics, count):
        topic_flags = [f"--topic={topic}" for topic in topics]
        done = run("nsq_tail", *topic_flags, f"--nsqd-tcp-address={nsqd.tcp_address}", "--channel=c", f"--n={count}")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return shown


def attempts(nsqd, topic, count):
    """Of `count` messages, by body, as the next consumer sees them."""
    seen = {}

    def note(message):
        seen[message.body] = message.attempts

    with Consumer(topic, "c", note, nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=100, max_tries=0):
        wait_until(lambda: len(seen) == count)
    return seen


def test_no_message_is_fetched_after_the_last_one(tail, nsqd, topic):
    bodies = [b"%d" % number for number in range(20)]
    nsqd.publish(topic, *bodies)
    [shown] = tail(topic, count=1)
    assert attempts(nsqd, topic, 19) == {body: 1 for body in bodies if body != shown}


def test_surplus_messages_are_requeued_once(tail, nsqd, topic):
    bodies = [b"%d" % number for number in range(20)]
    nsqd.publish(topic, *bodies)
    shown = tail(topic, count=5)
    left = attempts(nsqd, topic, 15)
    assert {*shown, *left} == set(bodies)
    assert set(left.values()) <= {1, 2}


def test_other_topics_lose_nothing_when_one_reaches_its_limit(tail, nsqd, topic):
    topics = [topic, *(f"{topic}.{number}" for number in range(5))]
    bodies = {b"%d" % number for number in range(20)}
    for each in topics:
        nsqd.create_channel(each, "c")
        nsqd.publish(each, *bodies)
    shown = tail(*topics, count=3)
    left = [attempts(nsqd, each, nsqd.unfinished(each)) for each in topics]
    assert sum(map(len, left)) == 20 * len(topics) - len(shown)
    assert {count for each in left for count in each.values()} <= {1, 2}


def test_a_message_with_many_attempts_is_printed(tail, nsqd, topic):
    nsqd.publish(topic, b"hopeless")
    tries = []

    def refuse(message):
        tries.append(message.attempts)
        message.requeue(delay=0, backoff=False)

    with Consumer(topic, "c", refuse, nsqd_tcp_addresses=[nsqd.tcp_address], max_tries=0):
        wait_until(lambda: len(tries) > 7)
    assert tail(topic, count=1) == [b"hopeless"]


# --- From a place of the log ------------------------------------------------------------------------------------------


def test_from_a_place_on_messages_are_shown_without_a_channel(run, nsqd, topic):
    nsqd.publish(topic, *[b"%d" % number for number in range(20)])
    flags = (f"--topic={topic}", f"--nsqd-http-address={nsqd.http_address}")
    done = run("nsq_tail", *flags, "--from=12", "--n=5", "--print-topic")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [f"{topic} | {number}" for number in range(12, 17)]
    assert [channel["channel_name"] for channel in nsqd.topic_stats(topic)["channels"]] == ["c"]
    assert nsqd.waiting(topic) == 20


def test_from_a_place_on_it_goes_on_with_what_is_published(start, nsqd, topic):
    nsqd.publish(topic, b"old", b"1")
    process = start("nsq_tail", f"--topic={topic}", f"--nsqd-http-address={nsqd.http_address}", "--from=1")
    assert process.stdout.readline() == "1\n"
    nsqd.publish(topic, b"2")
    assert process.stdout.readline() == "2\n"
    process.terminate()
    assert process.wait(30) == 0


def test_a_new_channel_begins_at_the_place_and_an_old_one_stays(run, nsqd, topic):
    nsqd.publish(topic, *[b"%d" % number for number in range(20)])
    addresses = (f"--nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}")
    flags = (f"--topic={topic}", *addresses, "--channel=new", "--n=3")
    first = run("nsq_tail", *flags, "--from=15")
    assert first.returncode == 0, first.stderr
    assert first.stdout.split() == [b"15", b"16", b"17"]
    assert f"channel new of {topic} begins at 15: 5 messages will come".encode() in first.stderr
    second = run("nsq_tail", *flags, "--from=oldest", "--n=2")
    assert set(second.stdout.split()) == {b"18", b"19"}
    assert b"exists, and stays at " in second.stderr
    assert b"; --from is for a new channel, nsq_rewind moves this one" in second.stderr


def test_a_place_that_nsqd_refuses_ends_it(run, nsqd, topic):
    nsqd.publish(topic, b"1")
    flags = (f"--topic={topic}", f"--nsqd-http-address={nsqd.http_address}", "--from=yesterday")
    for more in ((), ("--channel=new", f"--nsqd-tcp-address={nsqd.tcp_address}")):
        done = run("nsq_tail", *flags, *more)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"INVALID_ARG_AT: oldest, latest, an offset" in done.stderr


def test_headers_are_shown_before_bodies(run, nsqd, topic):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"with", headers={"Key": "ä<"})
        producer.publish(topic, b"without")
    for source in (
        ("--from=0", f"--nsqd-http-address={nsqd.http_address}"),
        ("--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}"),
    ):
        done = run("nsq_tail", f"--topic={topic}", "--n=2", "--headers", *source)
        lines = sorted(done.stdout.decode().splitlines())
        assert lines == ['{"key":"ä\\u003c"}\twith', "{}\twithout"], done.stderr
