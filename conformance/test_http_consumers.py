"""nsq_pubsub and nsq_pull with the nsqd to test: messages that are handed out arrive, and others are requeued."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

LARGE = b"x" * 400_000

StartConsumer = Callable[..., HttpConsumerProcess]


@pytest.fixture
def start() -> Iterator[StartConsumer]:
    """Start a program with these flags; it is stopped at the end of the test."""
    with ExitStack() as running:

        def start_it(program: str, *flags: str) -> HttpConsumerProcess:
            return running.enter_context(HttpConsumerProcess(installed(program), options=flags))

        yield start_it


@pytest.fixture
def pull(start: StartConsumer, nsqd: NsqdProcess, topic: str) -> HttpConsumerProcess:
    nsqd.create_channel(topic, "c")
    return start("nsq_pull", f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}")


def waiting(nsqd: NsqdProcess, topic: str) -> int:
    """The depth of the channel; -1 while messages are in flight."""
    stats = nsqd.channel_stats(topic, "c")
    return -1 if stats["in_flight_count"] or stats["deferred_count"] else int(stats["depth"])


def test_a_published_message_can_be_fetched(pull: HttpConsumerProcess, nsqd: NsqdProcess, topic: str) -> None:
    assert pull.ask("/put", b"one") == (200, b"")
    assert pull.ask("/mput", b"two\nthree\n") == (200, b"")
    _, first = pull.ask("/get?wait=20")
    got = {first}
    while len(got) < 3:
        got.update(pull.ask("/mget?num_items=10&wait=20")[1].split(b"\n"))
    assert got == {b"one", b"two", b"three"}
    eventually(lambda: waiting(nsqd, topic) == 0)
    assert pull.ask("/get") == (200, b"")


def test_nothing_stays_in_flight_without_a_request(pull: HttpConsumerProcess, nsqd: NsqdProcess, topic: str) -> None:
    assert pull.ask("/mput", b"1\n2\n3") == (200, b"")
    assert len(pull.ask("/get?wait=20")[1]) == 1
    eventually(lambda: waiting(nsqd, topic) == 2)


def test_messages_of_an_unread_answer_are_requeued(pull: HttpConsumerProcess, nsqd: NsqdProcess, topic: str) -> None:
    for _ in range(30):
        assert pull.ask("/put", LARGE) == (200, b"")
    caller = pull.call("/mget?num_items=30&wait=20", receive_buffer=4096)
    assert caller.recv(15) == b"HTTP/1.1 200 OK"
    caller.close()
    eventually(lambda: waiting(nsqd, topic) == 30)
    assert nsqd.channel_stats(topic, "c")["timeout_count"] == 0


def test_a_topic_is_streamed_and_a_disconnect_requeues_the_rest(
    start: StartConsumer, pull: HttpConsumerProcess, nsqd: NsqdProcess, topic: str
) -> None:
    pubsub = start("nsq_pubsub", f"--nsqd-tcp-address={nsqd.tcp_address}")
    with pubsub.call(f"/sub?topic={topic}&channel=c") as caller, caller.makefile("rb") as lines:
        pull.ask("/mput", b"1\n2\n3")
        while lines.readline() != b"\r\n":
            pass
        assert sorted(lines.readline() for _ in range(3)) == [b"1\n", b"2\n", b"3\n"]
        eventually(lambda: waiting(nsqd, topic) == 0)
    for _ in range(40):
        assert pull.ask("/put", LARGE) == (200, b"")
    caller = pubsub.call(f"/sub?topic={topic}&channel=c", receive_buffer=4096)
    eventually(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] > 20)
    caller.close()
    eventually(lambda: waiting(nsqd, topic) == 40)
    assert nsqd.channel_stats(topic, "c")["timeout_count"] == 0


def test_nsqd_may_be_found_through_nsqlookupd(
    start: StartConsumer,
    nsqd_command: str,
    nsqlookupd: NsqlookupdProcess,
    topic: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    options = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("data"), options=options) as nsqd:
        nsqd.create_channel(topic, "c")
        eventually(lambda: nsqlookupd.get("/channels", topic=topic)["channels"] == ["c"])
        pull = start(
            "nsq_pull",
            f"--topic={topic}",
            "--channel=c",
            f"--lookupd-http-address={nsqlookupd.http_address}",
            f"--destination-nsqd-tcp-address={nsqd.tcp_address}",
        )
        assert pull.ask("/put", b"found") == (200, b"")
        assert pull.ask("/get?wait=20") == (200, b"found")
