"""The tests of nsqd that run with every client: pynsq, go-nsq, gnsq and nsqjs."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nsq_conformance.clients import Client, ClientFailed
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.pynsq_client import numbered_lines
from nsq_conformance.raw_client import soon

LinesFile = Callable[[int], Path]


def assert_each_line_once(file: Path, *received: Path) -> None:
    """Check that each line was received once, in any order, by any of the consumers."""
    arrived = Counter(body for out in received for body in out.read_bytes().split(b"\n")[:-1])
    assert arrived == Counter(numbered_lines(file))


def assert_channel_is_done(nsqd: NsqdProcess, topic: str, channel: str, *, message_count: int, **counts: int) -> None:
    """Check that the channel had `message_count` messages, all finished. Other counts are 0, or as in ``counts``.

    Waits, because nsqd may not have read all commands of a client that has ended.
    """
    expected = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "requeue_count": 0, "timeout_count": 0}
    expected |= {"message_count": message_count} | counts

    def found() -> dict[str, int]:
        stats = nsqd.channel_stats(topic, channel)
        return {name: stats[name] for name in expected}

    assert soon(lambda: found() == expected), f"{found()}, not {expected}"


class Delivery:
    """Subclasses have the fixture ``client``, which publishes and consumes."""

    refusal_of_a_name = "E_BAD_TOPIC"

    @pytest.fixture
    def impatient(self, nsqd: NsqdProcess) -> NsqdProcess:
        """The nsqd for tests of timeouts; any nsqd, if the client can set its message timeout."""
        return nsqd

    @pytest.mark.parametrize(
        ("command", "count"),
        [({"command": "pub"}, 3000), ({"command": "mpub", "batch": 150}, 3000)],
        ids=["pub", "mpub"],
    )
    def test_every_line_of_a_file_arrives_once(
        self,
        client: Client,
        nsqd: NsqdProcess,
        topic: str,
        lines_file: LinesFile,
        tmp_path: Path,
        command: dict[str, object],
        count: int,
    ) -> None:
        file, out = lines_file(count), tmp_path / "out"
        consumer = client.consuming(nsqd.tcp_address, topic, "ch", count, out)
        assert client.publishing(nsqd.tcp_address, topic, file, **command).report()["published"] == count
        assert consumer.report()["attempts"] == {"1": count}
        assert_each_line_once(file, out)
        assert_channel_is_done(nsqd, topic, "ch", message_count=count)

    def test_messages_wait_in_the_topic_for_its_first_channel(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(500), tmp_path / "out"
        client.publishing(nsqd.tcp_address, topic, file).report()
        client.consuming(nsqd.tcp_address, topic, "late", 500, out).report()
        assert_each_line_once(file, out)

    def test_a_deferred_message_is_not_delivered_early(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(100), tmp_path / "out"
        consumer = client.consuming(nsqd.tcp_address, topic, "ch", 100, out)
        client.publishing(nsqd.tcp_address, topic, file, command="dpub", defer_ms=700).report()
        assert consumer.report()["youngest_ms"] >= 700
        assert_each_line_once(file, out)

    def test_a_requeued_message_comes_back_with_one_more_attempt(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(200), tmp_path / "out"
        client.publishing(nsqd.tcp_address, topic, file).report()
        consumer = client.consuming(nsqd.tcp_address, topic, "ch", 200, out, first_attempt="requeue", requeue_ms=50)
        report = consumer.report()
        assert (report["requeued"], report["attempts"]) == (200, {"2": 200})
        assert_each_line_once(file, out)
        assert_channel_is_done(nsqd, topic, "ch", message_count=200, requeue_count=200)

    def test_requeues_with_back_off_slow_a_consumer_down_for_a_while(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(3), tmp_path / "out"
        nsqd.create_channel(topic, "ch")
        client.publishing(nsqd.tcp_address, topic, file).report()
        options = {"first_attempt": "backoff", "max_backoff_seconds": 10, "max_in_flight": 1}
        consumer = client.consuming(nsqd.tcp_address, topic, "ch", 3, out, **options)

        def backs_off() -> bool:
            clients = nsqd.channel_stats(topic, "ch")["clients"]
            return any(each["requeue_count"] and not each["ready_count"] for each in clients)

        eventually(backs_off, consumer)
        report = consumer.report()
        assert (report["requeued"], report["attempts"]) == (3, {"2": 3})
        assert_each_line_once(file, out)
        assert_channel_is_done(nsqd, topic, "ch", message_count=3, requeue_count=3)

    def test_touching_keeps_a_message_from_timing_out(
        self, client: Client, impatient: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(20), tmp_path / "out"
        client.publishing(impatient.tcp_address, topic, file).report()
        options = {"msg_timeout_ms": 1500, "hold_ms": 3200, "touch_ms": 200, "max_in_flight": 20}
        report = client.consuming(impatient.tcp_address, topic, "ch", 20, out, **options).report()
        assert report["attempts"] == {"1": 20}
        assert_channel_is_done(impatient, topic, "ch", message_count=20)

    def test_an_unanswered_message_times_out_and_its_late_answer_is_refused(
        self, client: Client, impatient: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(20), tmp_path / "out"
        client.publishing(impatient.tcp_address, topic, file).report()
        options = {"msg_timeout_ms": 1000, "first_attempt": "late", "max_in_flight": 20}
        report = client.consuming(impatient.tcp_address, topic, "ch", 20, out, **options).report()
        assert report["attempts"] == {"2": 20}
        assert_each_line_once(file, out)
        assert_channel_is_done(impatient, topic, "ch", message_count=20, timeout_count=20)

    def test_readers_of_one_channel_share_its_messages(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file, out = lines_file(1000), tmp_path / "out"
        options = {"readers": 4, "max_in_flight": 5, "hold_ms": 2}
        consumer = client.consuming(nsqd.tcp_address, topic, "ch", 1000, out, **options)
        client.publishing(nsqd.tcp_address, topic, file).report()
        assert min(consumer.report()["by_reader"]) > 0
        assert_each_line_once(file, out)
        assert_channel_is_done(nsqd, topic, "ch", message_count=1000)

    def test_every_channel_gets_every_message(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file = lines_file(500)
        channels = ["archive", "metrics", "short-lived#ephemeral"]
        for channel in channels:
            nsqd.create_channel(topic, channel)
        consumers = [
            client.consuming(nsqd.tcp_address, topic, channel, 500, tmp_path / channel) for channel in channels
        ]
        client.publishing(nsqd.tcp_address, topic, file).report()
        for channel, consumer in zip(channels, consumers, strict=True):
            assert consumer.report()["finished"] == 500
            assert_each_line_once(file, tmp_path / channel)

    def test_a_body_over_the_limit_closes_only_its_own_connection(
        self, client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
    ) -> None:
        file = tmp_path / "one-long-line"
        file.write_bytes(b"x" * (1024 * 1024))
        # Does not match E_BAD_MESSAGE: nsqd closes with the body unread, and a TCP reset may overtake the error frame.
        with pytest.raises(ClientFailed, match="refused to publish"):
            client.publishing(nsqd.tcp_address, topic, file).report()
        assert client.publishing(nsqd.tcp_address, topic, lines_file(10)).report()["published"] == 10

    def test_an_invalid_topic_name_is_refused(self, client: Client, nsqd: NsqdProcess, lines_file: LinesFile) -> None:
        with pytest.raises(ClientFailed, match=self.refusal_of_a_name):
            client.publishing(nsqd.tcp_address, "no$topic", lines_file(1)).report()
