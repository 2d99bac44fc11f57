"""Offsets, batches and lags of mode=log, with real daemons."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.policy.access import hash_of
from nsq_compat.protocol.frames import OK, Message
from nsq_conformance.certificates import Certificates
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from pyspark_nsq.filters import Bounds
from pyspark_nsq.log_plan import Range, limited
from pyspark_nsq.log_progress import LogProgress, batch_ranges
from pyspark_nsq.log_reader import LogUnreadable, MessagesLost, has_mark, read_range
from pyspark_nsq.nodes import NoNodes
from pyspark_nsq.options import OptionError, ReadOptions, read_options
from pyspark_nsq.topic_logs import TopicLogs
from tests.cluster.hostile import DRIPPING, HostileServer
from tests.faults.test_clock import FalseClock
from tests.spark.frames import frames_of


def publish(nsqd: NsqdProcess, topic: str, *messages: bytes) -> None:
    assert nsqd.asks("POST", f"/mpub?topic={topic}", b"\n".join(messages)).status == 200


def retention(folder: Path) -> str:
    """The option of an nsqd that retains all messages."""
    config = folder / "nsqd.cfg"
    config.write_text('[[policies]]\nretain_for = "1h"\n')
    return f"--config={config}"


@pytest.fixture(scope="module")
def retaining(tmp_path_factory):
    """An nsqd that retains all messages for an hour."""
    folder = tmp_path_factory.mktemp("retaining")
    with NsqdProcess(installed_nsqd(), folder, options=[retention(folder)]) as nsqd:
        yield nsqd


@pytest.fixture
def options_of(retaining, topic):
    def options(use: str = "stream", **more: str) -> ReadOptions:
        written = {"subscribe": topic, "nsqdHttpAddresses": retaining.http_address}
        often = {"pollIntervalMs": "0"} if use == "stream" else {}
        return read_options(written | often | more, use)

    return options


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark stores it."""
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def bodies(ranges: list[Range], options: ReadOptions) -> list[bytes]:
    return [body for each in ranges for batch, _ in read_range(each, options) for body in batch["body"].to_pylist()]


def test_a_stream_begins_at_the_latest_and_reads_what_follows(retaining, topic, options_of):
    publish(retaining, topic, b"before")
    progress = LogProgress(options_of())
    first = progress.next(progress.initial(), None)
    assert progress.ranges(first) == []  # the batch that puts the beginning into the checkpoint
    assert progress.next(first, None) == first
    publish(retaining, topic, b"one")
    publish(retaining, topic, b"two")
    end = progress.next(first, None)
    assert bodies(progress.ranges(through_json(end)), options_of()) == [b"one", b"two"]
    assert progress.report()["backlog"] == 0
    publish(retaining, topic, b"three")
    # After a restart the end alone gives the same batch, whatever was published meanwhile.
    assert bodies(LogProgress(options_of()).ranges(through_json(end)), options_of()) == [b"one", b"two"]


def test_a_batch_begins_at_the_earliest_and_ends_at_the_latest(retaining, topic, options_of):
    publish(retaining, topic, *[b"%d" % each for each in range(10)])
    options = options_of("batch", minPartitions="3")
    ranges = batch_ranges(options)
    assert [(each.begin, each.end) for each in ranges] == [(0, 3), (3, 6), (6, 10)]
    assert bodies(ranges, options) == [b"%d" % each for each in range(10)]


def test_a_stream_that_begins_earlier_reads_what_is_retained_in_limited_batches(retaining, topic, options_of):
    publish(retaining, topic, *[b"%d" % each for each in range(10)])
    options = options_of(startingOffsets="earliest")
    progress, read, offset = LogProgress(options), [], None
    offset = progress.initial()
    sizes = []
    while (end := progress.next(offset, 4)) != offset:
        read += bodies(progress.ranges(end), options)
        sizes.append(len(read))
        offset = through_json(end)
    assert (sizes, read) == ([4, 8, 10], [b"%d" % each for each in range(10)])


def test_places_are_named_by_offset_and_by_time(retaining, topic, options_of):
    times = []
    for body in (b"0", b"1", b"2"):
        publish(retaining, topic, body)
        times.append(retaining.asks("GET", f"/topic/offsets?topic={topic}").json()["last_timestamp"])
        while time.time_ns() // 1_000_000 <= times[-1] // 1_000_000 + 1:
            time.sleep(0.001)
    # The first millisecond that is not before the message.
    later = {"startingTimestamp": str(times[0] // 1_000_000 + 1)}
    nsqd = retaining.http_address
    for more, expected in (
        ({"startingOffsets": json.dumps({topic: {nsqd: 1}})}, [b"1", b"2"]),
        (
            {"startingOffsets": json.dumps({topic: {nsqd: -2}}), "endingOffsets": json.dumps({topic: {nsqd: 2}})},
            [b"0", b"1"],
        ),
        (later, [b"1", b"2"]),
        (later | {"endingTimestamp": str(times[1] // 1_000_000 + 1)}, [b"1"]),
    ):
        options = options_of("batch", **more)
        assert bodies(batch_ranges(options), options) == expected
    with pytest.raises(OptionError, match="startingTimestamp: there is no later message"):
        batch_ranges(options_of("batch", startingTimestamp="9999999999999"))
    with pytest.raises(OptionError, match=r"startingOffsets must name every nsqd of every topic, .* on 127\.0\.0\.1:1"):
        batch_ranges(options_of("batch", startingOffsets=json.dumps({topic: {nsqd: 0, "127.0.0.1:1": 0}})))


def test_all_topics_that_match_a_pattern_are_read(retaining, topic, options_of):
    for name in (f"{topic}.a", f"{topic}.b", f"x{topic}.a"):
        publish(retaining, name, name.encode())
    pattern = {"subscribe": "", "subscribePattern": topic.replace(".", r"\.") + r"\.[ab]"}
    options = options_of("batch", **pattern)
    assert bodies(batch_ranges(options), options) == [f"{topic}.a".encode(), f"{topic}.b".encode()]


def test_released_messages_fail_the_query_unless_that_is_allowed(tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path, options=[retention(tmp_path)]) as nsqd:
        written = {"subscribe": "t", "nsqdHttpAddresses": nsqd.http_address, "pollIntervalMs": "0"}
        publish(nsqd, "t", b"old")
        progress = LogProgress(read_options(written | {"startingOffsets": "earliest"}, "stream"))
        end = progress.next(progress.initial(), None)
        assert nsqd.asks("POST", "/topic/empty?topic=t").status == 200
        publish(nsqd, "t", b"new")
        end = progress.next(end, None) | {"plan": [["t", nsqd.http_address, "", 0, 1]]}
        options = read_options(written, "stream")
        with pytest.raises(MessagesLost, match=r"1 messages of t on nsqd .*, from offset 0, were released"):
            bodies(progress.ranges(end), options)
        assert bodies(progress.ranges(end), read_options(written | {"failOnDataLoss": "false"}, "stream")) == [b"new"]


def test_an_nsqd_that_lost_its_data_fails_the_query_unless_that_is_allowed(retaining, topic, options_of):
    publish(retaining, topic, b"one")
    ahead = {"version": 1, "offsets": {topic: {retaining.http_address: 7}}, "plan": []}
    with pytest.raises(MessagesLost, match="has only 1 messages of .*, and 7 were read"):
        LogProgress(options_of()).next(ahead, None)
    options = options_of(failOnDataLoss="false")
    progress = LogProgress(options)
    assert bodies(progress.ranges(progress.next(ahead, None)), options) == [b"one"]


def test_another_log_at_the_same_address_fails_the_query_unless_that_is_allowed(retaining, topic, options_of):
    publish(retaining, topic, b"1", b"2", b"3")
    progress = LogProgress(options_of(startingOffsets="earliest"))
    end = progress.next(progress.initial(), 2)
    assert retaining.asks("POST", f"/topic/delete?topic={topic}").status == 200
    anew = [b"%d" % each for each in range(10, 15)]
    publish(retaining, topic, *anew)
    for each in (progress, LogProgress(options_of())):
        with pytest.raises(MessagesLost, match="has another log of .* than the one of which 2 messages were read"):
            each.next(through_json(end), None)
    options = options_of(failOnDataLoss="false")
    following = LogProgress(options).next(through_json(end), None)
    assert bodies(progress.ranges(through_json(following)), options) == anew
    publish(retaining, topic, b"15")
    assert bodies(progress.ranges(progress.next(through_json(following), None)), options) == [b"15"]


def test_a_batch_of_a_log_that_is_lost_is_not_read_from_another(retaining, topic, options_of):
    publish(retaining, topic, b"1", b"2", b"3")
    progress, skips = LogProgress(options_of(startingOffsets="earliest")), options_of(failOnDataLoss="false")
    end = progress.next(progress.initial(), None)
    assert retaining.asks("POST", f"/topic/delete?topic={topic}").status == 200
    for anew in (b"shorter",), (b"as long", b"as the", b"old one"):
        publish(retaining, topic, *anew)
        with pytest.raises(MessagesLost, match=r"3 messages of .*, from offset 0, were lost: it has another log"):
            bodies(progress.ranges(through_json(end)), options_of())
        assert bodies(progress.ranges(through_json(end)), skips) == []


def test_a_log_is_told_from_another_if_the_clock_was_set_back(retaining, topic, options_of):
    publish(retaining, topic, b"1")
    nsqd = retaining.http_address
    mark = TopicLogs(options_of()).require().logs[topic, nsqd].mark
    assert mark is not None, "there is a message"
    while time.time_ns() <= mark.timestamp_ns:
        time.sleep(0.001)
    publish(retaining, topic, b"2")
    # As if the clock had been set back after the second message: it is newer than the mark, which is there.
    assert bodies([Range(topic, nsqd, 1, 2, mark=mark)], options_of()) == [b"2"]
    for other in mark._replace(timestamp_ns=1), mark._replace(offset=2):
        assert has_mark(topic, nsqd, other, options_of()) is False


def test_an_nsqd_that_comes_to_another_address_is_read_on_there(tmp_path):
    def options(*nsqds: NsqdProcess) -> ReadOptions:
        addresses = ",".join(each.http_address for each in nsqds)
        written = {"subscribe": "t", "nsqdHttpAddresses": addresses, "startingOffsets": "earliest"}
        return read_options(written | {"pollIntervalMs": "0"}, "stream")

    folders = [tmp_path / "moves", tmp_path / "stays"]
    for folder in folders:
        folder.mkdir()
    moving, staying = (NsqdProcess(installed_nsqd(), each, options=[retention(tmp_path)]) for each in folders)
    with staying:
        publish(staying, "t", b"other 1", b"other 2")
        with moving:
            publish(moving, "t", b"1", b"2", b"3")
            progress = LogProgress(options(moving, staying))
            end = progress.next(progress.initial(), 2)
            read = set(bodies(progress.ranges(end), options(moving, staying)))
            assert len(read) == 2
            former = moving.http_address
        with NsqdProcess(installed_nsqd(), folders[0], options=[retention(tmp_path)]) as moved:
            publish(moved, "t", b"4")
            progress = LogProgress(options(moved, staying))
            following = through_json(progress.next(through_json(end), None))
            assert former not in str(following)
            rest = {b"1", b"2", b"3", b"4", b"other 1", b"other 2"} - read
            assert set(bodies(progress.ranges(following), options(moved))) == rest
            assert progress.next(following, None) == following
            assert progress.report()["backlog"] == 0


def test_a_query_that_stops_reads_what_there_was(retaining, topic, options_of):
    publish(retaining, topic, b"one")
    options = options_of(startingOffsets="earliest")
    progress = LogProgress(options)
    progress.stop_at_current_end()
    first = progress.next(progress.initial(), None)
    publish(retaining, topic, b"two")
    assert bodies(progress.ranges(first), options) == [b"one"]
    assert progress.next(first, None) == first


def test_an_nsqd_that_does_not_answer_delays_only_its_own_messages(retaining, topic, options_of, caplog):
    publish(retaining, topic, b"one")
    with HostileServer(DRIPPING[0]) as hanging:
        options = options_of(
            startingOffsets="earliest",
            nsqdHttpAddresses=f"{retaining.http_address},{hanging.address}",
            connectTimeoutMs="1000",
        )
        progress = LogProgress(options)
        end = progress.next(progress.initial(), None)
        assert bodies(progress.ranges(end), options) == [b"one"]
        assert progress.next(end, None) == end
        assert caplog.text.count(f"is left out of batches until it answers: http://{hanging.address}/") == 1
        report = progress.report()["nsqds"]
        assert hanging.address in report[hanging.address]["unreachable"]
        assert report[hanging.address]["heardSecondsAgo"] is None
        assert report[retaining.http_address]["messages"] == 0
        with pytest.raises(NoNodes, match="needs an answer of every nsqd"):
            LogProgress(
                options_of(nsqdHttpAddresses=f"{retaining.http_address},{hanging.address}", connectTimeoutMs="1000")
            ).initial()


FRAME = frames_of([Message(1, 1, b"0" * 16, b"body")])[0]
OFFSETS = "X-NSQ-First-Offset: 0\r\nX-NSQ-Next-Offset: 1\r\n"


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason"),
    [
        ("200 OK", "", FRAME, "None is not an offset"),
        ("200 OK", "X-NSQ-First-Offset: 0\r\nX-NSQ-Next-Offset: -1\r\n", FRAME, "'-1' is not an offset"),
        ("200 OK", f"X-NSQ-First-Offset: {'9' * 5000}\r\n", FRAME, "is not an offset"),
        ("200 OK", OFFSETS, b"\0", "it has no messages"),
        ("200 OK", OFFSETS, b"", "it has no messages"),
        ("200 OK", OFFSETS, FRAME + OK, "it has other frames"),
        ("200 OK", OFFSETS, b"\xff" * 40, "invalid frame size"),
        ("410 Gone", "", b'{"message":"OFFSET_RELEASED"}', "is not an offset"),
    ],
)
def test_an_invalid_answer_to_a_read_is_named(options_of, status, headers, body, reason):
    def answer(_):
        yield f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body

    with HostileServer(answer) as hostile, pytest.raises(LogUnreadable, match="gave an invalid answer") as raised:
        list(read_range(Range("t", hostile.address, 0, 1), options_of()))
    assert reason in str(raised.value)


@pytest.mark.parametrize(("first", "following"), [(0, 6), (5, 11)])
def test_messages_outside_of_the_range_are_refused(options_of, first, following):
    def answer(_):
        body = FRAME * (following - first)
        offsets = f"X-NSQ-First-Offset: {first}\r\nX-NSQ-Next-Offset: {following}\r\n"
        yield f"HTTP/1.1 200 OK\r\n{offsets}Content-Length: {len(body)}\r\n\r\n".encode() + body

    with HostileServer(answer) as hostile, pytest.raises(LogUnreadable, match="was asked for those from 5 to 9"):
        list(read_range(Range("t", hostile.address, 5, 10), options_of()))


@pytest.mark.parametrize(
    ("body", "shown"), [(b"[" * 100_000, ": status 400"), (b'{"message":"' + b"x\\n" * 100_000 + b'"}', r": x\nx\n")]
)
def test_a_refusal_is_one_short_line(options_of, body, shown):
    def answer(_):
        yield b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    with HostileServer(answer) as hostile, pytest.raises(LogUnreadable) as raised:
        list(read_range(Range("t", hostile.address, 0, 1), options_of()))
    assert shown in str(raised.value)
    assert len(str(raised.value)) < 3000


def test_a_log_is_offered_only_where_it_is_retained(retaining, topic, options_of, tmp_path):
    publish(retaining, topic, b"one")
    assert TopicLogs(options_of()).offers_log()
    with NsqdProcess(installed_nsqd(), tmp_path) as nsqd:
        publish(nsqd, topic, b"one")
        assert not TopicLogs(options_of(nsqdHttpAddresses=nsqd.http_address)).offers_log()


def test_a_batch_is_held_back_until_enough_messages_wait(retaining, topic, options_of):
    publish(retaining, topic, b"1")
    progress = LogProgress(options_of(startingOffsets="earliest", minOffsetsPerTrigger="3"))
    first = progress.next(progress.initial(), None)
    assert first["offsets"][topic][retaining.http_address] == 1
    publish(retaining, topic, b"2", b"3")
    assert progress.next(first, None) == first
    assert progress.report()["maxOffsetsBehindLatest"] == "2"
    publish(retaining, topic, b"4")
    assert progress.next(first, None)["offsets"][topic][retaining.http_address] == 4
    # What waits when a query with availableNow starts is not held back.
    progress = LogProgress(options_of(minOffsetsPerTrigger="9"))
    progress.stop_at_current_end()
    assert progress.next(progress.next(first, 1), None)["offsets"][topic][retaining.http_address] == 4


def test_a_limit_is_divided_in_proportion_to_what_waits():
    assert limited({"t": {"a": 0, "b": 5}}, {"t": {"a": 30, "b": 15}}, 8) == {"t": {"a": 6, "b": 7}}


def test_a_batch_reads_from_a_little_before_the_time_of_a_filter(retaining, topic, options_of):
    publish(retaining, topic, b"early")
    later = time.time_ns() // 1_000_000 + 100
    while time.time_ns() // 1_000_000 < later:
        time.sleep(0.01)
    publish(retaining, topic, b"late")
    bounds = Bounds(since_ms=later - 50)
    assert bodies(batch_ranges(options_of("batch"), bounds), options_of("batch")) == [b"late"]
    assert batch_ranges(options_of("batch"), replace(bounds, end=1)) == []
    assert batch_ranges(options_of("batch"), Bounds(topics=frozenset(["other"]))) == []


def test_a_batch_reads_up_to_the_time_of_a_filter_and_what_was_published_while_the_clock_was_set_back(
    topic, options_of, tmp_path
):
    clock = FalseClock(tmp_path)
    clock.jump("-60m")
    (tmp_path / "data").mkdir()
    with NsqdProcess(clock.command, tmp_path / "data", options=[retention(tmp_path)]) as nsqd:
        options = options_of("batch", nsqdHttpAddresses=nsqd.http_address)

        def publish_at(*offsets: str) -> None:
            for each in offsets:
                clock.jump(each)
                publish(nsqd, topic, each.encode())

        def read(minutes_ago: int) -> list[bytes]:
            until = Bounds(until_ms=time.time_ns() // 1_000_000 - minutes_ago * 60_000)
            return bodies(batch_ranges(options, until), options)

        publish_at("-60m", "-40m", "-20m")
        assert read(50) == [b"-60m"]
        assert read(30) == [b"-60m", b"-40m"]
        publish_at("-50m", "-10m", "+0")
        assert read(45) == [b"-60m", b"-40m", b"-20m", b"-50m"]
        assert read(5) == [b"-60m", b"-40m", b"-20m", b"-50m", b"-10m"]
        assert batch_ranges(options, Bounds(since_ms=time.time_ns() // 1_000_000 - 300_000, until_ms=1)) == []


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_log_is_read_with_tls(topic: str, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    certificates = Certificates(tmp_path / "keys")
    (tmp_path / "data").mkdir()
    given = [retention(tmp_path), *certificates.options]
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=given) as nsqd:
        publish(nsqd, topic, b"one", b"two")
        https = f"https://{nsqd.https_address}"
        written = {"subscribe": topic, "nsqdHttpAddresses": https, "tls": "true", "mode": "log"}
        trusting = read_options(written | {"tlsCaFile": str(certificates.root_ca)}, "batch")
        assert TopicLogs(trusting).offers_log()
        ranges = batch_ranges(trusting)
        assert [each.nsqd for each in ranges] == [https]
        assert bodies(ranges, trusting) == [b"one", b"two"]
        distrusting = read_options(written, "batch")
        with pytest.raises(NoNodes, match="certificate"):
            batch_ranges(distrusting)
        positions = json.dumps({topic: {https: 1}})
        later = replace(trusting, starting_offsets=json.loads(positions))
        assert bodies(batch_ranges(later), later) == [b"two"]
        # Without a port for HTTPS, which nsqlookupd does not know, nothing is read in plain text.
        plain = read_options(written | {"nsqdHttpAddresses": nsqd.http_address, "mode": "auto"}, "batch")
        assert not TopicLogs(plain).offers_log()


# --- Tokens -----------------------------------------------------------------------------------------------------------


def test_a_log_is_found_and_read_with_a_token(topic: str, tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(
        "".join(
            f'[[tokens]]\nname = "{name}"\nhash = "{hash_of(name.encode())}"\npermissions = {permissions}\n'
            for name, permissions in (
                ("spark", ["read", "consume"]),
                ("node", ["register", "read"]),
                ("boss", ["admin"]),
            )
        )
    )
    (tmp_path / "node").write_text("node")
    (tmp_path / "data").mkdir()
    own = f"--access-file={access}"
    with NsqlookupdProcess(installed_nsqlookupd(), options=[own, "--broadcast-address=127.0.0.1"]) as lookupd:
        given = [
            own, retention(tmp_path), f"--cluster-token-file={tmp_path / 'node'}", "--broadcast-address=127.0.0.1",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
        ]  # fmt: skip
        with NsqdProcess(installed_nsqd(), tmp_path / "data", options=given) as nsqd:
            nsqd.asks("POST", f"/mpub?topic={topic}", b"one\ntwo", Authorization="Bearer boss")
            written = {"subscribe": topic, "lookupdHttpAddresses": lookupd.http_address, "mode": "log"}
            eventually(lambda: topic in str(lookupd.asks("GET", "/topics", Authorization="Bearer boss").json()))
            options = read_options(written | {"authSecret": "spark"}, "batch")
            assert TopicLogs(options).offers_log()
            assert bodies(batch_ranges(options), options) == [b"one", b"two"]
            with pytest.raises(NoNodes, match="401"):
                batch_ranges(read_options(written, "batch"))
