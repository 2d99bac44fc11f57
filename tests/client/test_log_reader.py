"""LogReader with real nsqd and nsqlookupd; a server of our own where an nsqd has to be away or wrong."""

import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, islice
from pathlib import Path

import pytest

from nsq_compat.bounded_http import Answer as HttpAnswer
from nsq_compat.client import Gap, LogReadError, OffsetGone, Producer
from nsq_compat.client import LogReader as ThreadedLogReader
from nsq_compat.client.discovery import MAX_NODES
from nsq_compat.client.log_reading import LoggedMessage, LogReading, Part, Pause, Request
from nsq_compat.client.settings import SubscriptionOptions
from nsq_conformance.certificates import Certificates
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.on_loop import LoopLogReader, end_loops
from tests.client.waiting import wait_until

LogReader = ThreadedLogReader
"""The kind that is tested."""

SMALL_FILES = ("--max-bytes-per-file=20000", "--sync-timeout=100ms")


@pytest.fixture(params=[ThreadedLogReader, LoopLogReader], ids=["threads", "asyncio"], autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules[__name__], "LogReader", request.param)
    yield
    end_loops()


def publish(nsqd: NsqdProcess, topic: str, *bodies: bytes) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)


def bodies(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def read(topic: str, nsqd: NsqdProcess, **options) -> list[LoggedMessage]:
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address, **options) as reader:
        return list(reader)


def bodies_of(messages) -> list[bytes]:
    return [message.body for message in messages]


@pytest.fixture
def make_nsqd(tmp_path) -> Iterator[Callable[..., NsqdProcess]]:
    numbers = count()
    with ExitStack() as running:

        def make(*options: str) -> NsqdProcess:
            folder: Path = tmp_path / f"nsqd-{next(numbers)}"
            folder.mkdir()
            options = ("--broadcast-address=127.0.0.1", *options)
            return running.enter_context(NsqdProcess(installed_nsqd(), folder, options=options))

        yield make


def on_own_host() -> list[str]:
    """Options of an nsqd that finds its ports free when it is started again."""
    host = own_host()
    return [f"--tcp-address={host}:0", f"--http-address={host}:0"]


@pytest.fixture
def registry() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


# --- One nsqd ---------------------------------------------------------------------------------------------------------


def test_a_topic_is_read_from_the_first_retained_message_to_the_end(nsqd, topic):
    before = time.time_ns()
    publish(nsqd, topic, *bodies(0, 1000))
    messages = read(topic, nsqd, max_bytes=1000)
    assert bodies_of(messages) == bodies(0, 1000)
    assert [message.offset for message in messages] == list(range(1000))
    assert {(message.attempts, message.nsqd) for message in messages} == {(1, nsqd.http_address)}
    assert all(before <= message.timestamp <= time.time_ns() for message in messages)
    assert len({message.id for message in messages}) == 1000
    assert nsqd.topic_stats(topic)["channels"] == []
    assert read(topic, nsqd) == messages


def test_a_range_begins_and_ends_at_offsets_or_times(nsqd, topic):
    publish(nsqd, topic, *bodies(0, 10))
    moment = datetime.now(UTC)
    publish(nsqd, topic, *bodies(10, 20))
    assert bodies_of(read(topic, nsqd, start=3, end=7)) == bodies(3, 7)
    assert bodies_of(read(topic, nsqd, start=moment)) == bodies(10, 20)
    assert bodies_of(read(topic, nsqd, end=moment.isoformat())) == bodies(0, 10)
    assert bodies_of(read(topic, nsqd, start=timedelta(hours=1), end="12")) == bodies(0, 12)
    assert bodies_of(read(topic, nsqd, start="1h")) == bodies(0, 20)
    assert read(topic, nsqd, start="latest") == []
    assert read(topic, nsqd, start=7, end=3) == []


def test_a_reader_goes_on_at_a_position_that_was_stored(nsqd, topic):
    publish(nsqd, topic, *bodies(0, 10))
    with LogReader(topic, nsqd_http_addresses=[nsqd.http_address], start=2) as reader:
        assert bodies_of(islice(reader, 3)) == bodies(2, 5)
        stored = json.dumps(reader.position)
    assert json.loads(stored) == {nsqd.http_address: 5}
    assert bodies_of(read(topic, nsqd, position=json.loads(stored))) == bodies(5, 10)


def test_the_ranges_are_known_before_anything_is_read(nsqd, topic):
    publish(nsqd, topic, *bodies(0, 10))
    reader = LogReader(topic, nsqd_http_addresses=nsqd.http_address, start=3, end=8)
    assert reader.ranges() == {nsqd.http_address: range(3, 8)}
    assert bodies_of(reader) == bodies(3, 8)


def publish_later(nsqd, topic, reader):
    wait_until(lambda: reader.position)
    publish(nsqd, topic, b"new")


def test_following_waits_for_what_is_published(nsqd, topic):
    publish(nsqd, topic, *bodies(0, 3))
    reader = LogReader(topic, nsqd_http_addresses=nsqd.http_address, start="latest", follow=True)
    threading.Thread(target=publish_later, args=(nsqd, topic, reader)).start()
    assert next(reader).body == b"new"
    threading.Timer(0.1, reader.stop).start()
    assert list(reader) == []
    assert reader.position == {nsqd.http_address: 4}


def test_following_waits_for_a_topic_that_does_not_exist_yet(nsqd, topic):
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address, follow=True) as reader:
        threading.Timer(0.2, publish, (nsqd, topic, b"first")).start()
        assert next(reader).body == b"first"


def test_a_topic_that_no_nsqd_has_is_an_error(nsqd, topic):
    with pytest.raises(LogReadError, match=f"no nsqd has the topic {topic}"):
        read(topic, nsqd)


def test_messages_larger_than_a_part_are_read(nsqd, topic):
    large = [bytes([number]) * 500_000 for number in range(4)]
    publish(nsqd, topic, *large)
    assert bodies_of(read(topic, nsqd, max_bytes=1)) == large


def test_released_offsets_are_an_error_with_the_first_offset(make_nsqd):
    nsqd = make_nsqd(*SMALL_FILES)
    nsqd.create_channel("t", "c")
    reader = LogReader("t", nsqd_http_addresses=nsqd.http_address, follow=True, max_bytes=1)
    for _ in range(10):
        publish(nsqd, "t", bytes(10_000))
    first = next(reader)
    nsqd.asks("POST", "/channel/empty?topic=t&channel=c")
    wait_until(lambda: nsqd.asks("GET", "/topic/offsets?topic=t").json()["first"] == 9)
    with pytest.raises(OffsetGone) as gone:
        list(reader)
    assert gone.value.nsqd == nsqd.http_address
    assert first.offset < gone.value.offset < gone.value.first
    assert f"the first offset is {gone.value.first}" in str(gone.value)
    with pytest.raises(OffsetGone, match="the message with offset 0 was released"):
        read("t", nsqd, position={nsqd.http_address: 0})
    assert read("t", nsqd, position={nsqd.http_address: gone.value.first})[0].offset == gone.value.first


def test_a_position_after_the_end_is_an_error(nsqd, topic):
    publish(nsqd, topic, b"1")
    with pytest.raises(LogReadError, match=r"the position 7 is after the next offset, 1"):
        read(topic, nsqd, position={nsqd.http_address: 7})


def test_a_gap_is_counted_and_reported_in_its_place(make_nsqd, tmp_path):
    nsqd = make_nsqd(*on_own_host())
    for number in range(5):
        publish(nsqd, "t", b"%d" % number * 2000)
    nsqd.stop()
    (segment,) = tmp_path.glob("nsqd-0/nsq_compat/t.topic/log.*")
    data = bytearray(segment.read_bytes())
    place = data.index(b"2" * 2000)
    data[place : place + 10] = b"x" * 10
    segment.write_bytes(data)
    nsqd.start()
    seen: list[object] = []
    with LogReader("t", nsqd_http_addresses=nsqd.http_address, on_gap=seen.append) as reader:
        for message in reader:
            seen.append(message.offset)
    assert seen == [0, 1, Gap(nsqd.http_address, 2, 2), 3, 4]
    assert reader.lost_count == 1


# --- Several nsqd -----------------------------------------------------------------------------------------------------


def test_all_nsqd_that_nsqlookupd_lists_are_read(make_nsqd, registry):
    nodes = [make_nsqd(f"--lookupd-tcp-address={registry.tcp_address}") for _ in range(2)]
    for number, node in enumerate(nodes):
        publish(node, "t", *bodies(10 * number, 10 * number + 5))
    reader = LogReader("t", lookupd_http_addresses=registry.http_address)
    assert reader.ranges() == {node.http_address: range(5) for node in nodes}
    messages = list(reader)
    for number, node in enumerate(nodes):
        assert bodies_of(each for each in messages if each.nsqd == node.http_address) == bodies(
            10 * number, 10 * number + 5
        )
    assert reader.position == {node.http_address: 5 for node in nodes}
    with pytest.raises(LogReadError, match="an offset is a place on one nsqd"):
        list(LogReader("t", lookupd_http_addresses=registry.http_address, end=3))
    publish(nodes[0], "one", *bodies(0, 5))
    wait_until(lambda: registry.asks("GET", "/lookup?topic=one").status == 200)
    assert bodies_of(LogReader("one", lookupd_http_addresses=registry.http_address, start=3)) == bodies(3, 5)
    with pytest.raises(LogReadError, match="no nsqd has the topic other"):
        list(LogReader("other", lookupd_http_addresses=registry.http_address))


def test_following_finds_further_nsqd(make_nsqd, registry):
    options = {"lookupd_http_addresses": registry.http_address, "lookupd_poll_interval": 0.2}
    with LogReader("t", follow=True, **options) as reader:
        found = [make_nsqd(f"--lookupd-tcp-address={registry.tcp_address}") for _ in range(2)]
        for node in found:
            publish(node, "t", b"1")
            assert next(reader).nsqd == node.http_address
    assert reader.position == {node.http_address: 1 for node in found}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "either nsqd_http_addresses or lookupd_http_addresses"),
        ({"nsqd_http_addresses": "a:1", "lookupd_http_addresses": "b:1"}, "either nsqd_http_addresses or"),
        ({"nsqd_http_addresses": ["a:1", "b:1"], "start": 3}, "an offset is a place on one nsqd"),
        ({"lookupd_http_addresses": "a:1", "start": "3", "follow": True}, "an offset is a place on one nsqd"),
        ({"nsqd_http_addresses": "a:1", "follow": True, "end": "latest"}, "follow has no end"),
        ({"nsqd_http_addresses": "a:1", "start": datetime(2026, 1, 1)}, "has no time zone"),
        ({"nsqd_http_addresses": "a:1", "timeout": 0}, "timeout must be above 0"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        LogReader("t", **options)


def test_a_wrong_place_is_an_error_with_the_answer_of_nsqd(nsqd, topic):
    publish(nsqd, topic, b"1")
    with pytest.raises(LogReadError, match="answered 400 INVALID_ARG_AT: oldest, latest, an offset"):
        read(topic, nsqd, start="yesterday")


# --- Failures ---------------------------------------------------------------------------------------------------------


def test_an_nsqd_that_is_away_is_asked_until_it_is_back(make_nsqd):
    nsqd = make_nsqd(*on_own_host())
    publish(nsqd, "t", *bodies(0, 100))
    with LogReader("t", nsqd_http_addresses=nsqd.http_address, follow=True, max_bytes=1) as reader:
        assert bodies_of(islice(reader, 10)) == bodies(0, 10)
        nsqd.kill()
        restart = threading.Timer(0.3, nsqd.start)
        restart.start()
        try:
            assert bodies_of(islice(reader, 90)) == bodies(10, 100)
        finally:
            restart.join()  # otherwise the test may end before it is known which process there is to end


def test_an_nsqd_that_stays_away_is_an_error_after_the_deadline(caplog):
    reader = LogReader("t", nsqd_http_addresses="127.0.0.1:1", retry_timeout=0.3)
    with pytest.raises(LogReadError, match=r"nsqd 127\.0\.0\.1:1: connection refused, for 0\.3 s"):
        list(reader)
    assert caplog.text.count("trying again") == 1
    with pytest.raises(LogReadError, match=r"nsqlookupd 127\.0\.0\.1:1: connection refused"):
        list(LogReader("t", lookupd_http_addresses="127.0.0.1:1", retry_timeout=0))


def test_stopping_ends_the_wait_for_an_nsqd_that_is_away():
    reader = LogReader("t", nsqd_http_addresses="127.0.0.1:1", retry_timeout=None)
    threading.Timer(0.2, reader.stop).start()
    assert list(reader) == []
    assert reader.ranges() == {}
    reader = LogReader("t", lookupd_http_addresses="127.0.0.1:1", retry_timeout=None)
    threading.Timer(0.2, reader.stop).start()
    assert reader.ranges() == {}


def test_a_stopped_reader_returns_no_further_message(nsqd, topic):
    publish(nsqd, topic, *bodies(0, 10))
    reader = LogReader(topic, nsqd_http_addresses=nsqd.http_address)
    for message in reader:
        if message.offset == 3:
            reader.stop()
    assert reader.position == {nsqd.http_address: 4}


Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve these answers, by path: status, headers and body; note requests, and tokens; returns the address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Answer], requests: list[str] | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/topic/")
                status, headers, body = answers.get(path, (404, {}, b'{"message":"NOT_FOUND"}'))
                if requests is not None:
                    requests.append(f"{self.path} {self.headers.get('Authorization', '')}".rstrip())
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


OFFSETS: Answer = (200, {}, b'{"first":0,"next":2,"offset":2}')
LONG = b'{%b,"more":[' + b"[]," * 400_000 + b"[]]}"
FRAME = b"\0\0\0\x1f\0\0\0\2" + bytes(8) + b"\0\1" + b"0" * 16 + b"a"


def test_an_nsqd_without_these_endpoints_is_named(serve):
    for answers, path in (({}, "/topic/offsets"), ({"offsets": OFFSETS}, "/topic/read")):
        with pytest.raises(LogReadError, match=f"does not offer {path}: it is Go's nsqd, or an nsqd with --auth"):
            list(LogReader("t", nsqd_http_addresses=serve(answers)))


def test_all_of_a_topic_that_is_created_later_is_after_the_end(serve):
    answers: dict[str, Answer] = {"offsets": (404, {}, b'{"message":"TOPIC_NOT_FOUND"}')}
    requests: list[str] = []
    address = serve(answers, requests)
    with LogReader("t", nsqd_http_addresses=address, start="latest", follow=True) as reader:
        found: list[LoggedMessage] = []
        thread = threading.Thread(target=lambda: found.append(next(reader)))
        thread.start()
        wait_until(lambda: requests)
        answers["read"] = (200, {"X-NSQ-First-Offset": "0", "X-NSQ-Next-Offset": "1"}, FRAME)
        answers["offsets"] = (200, {}, b'{"first":0,"next":1,"offset":1}')
        thread.join()
    assert [message.offset for message in found] == [0]
    assert any("from=0" in request for request in requests)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"offsets": (200, {}, b"[]")}, "the answer has no offsets; is this nsqd's HTTP address"),
        ({"offsets": (200, {}, b"<html>")}, "the answer is not JSON"),
        ({"offsets": (200, {}, b"[" * 100_000)}, "the answer has too many levels"),
        ({"offsets": (500, {}, b"[" * 100_000)}, "answered 500"),
        ({"offsets": (200, {}, LONG % b'"first":0,"next":1,"offset":1')}, "the answer has no offsets"),
        ({"offsets": (500, {}, LONG % b'"message":"NOT_READ"')}, "answered 500$"),
        ({"offsets": (500, {}, b'{"message":"INTERNAL_ERROR"}')}, "answered 500 INTERNAL_ERROR"),
        ({"offsets": (200, {}, b'{"first":0,"next":1,"offset":9223372036854775808}')}, "the answer has no offsets"),
        ({"offsets": (200, {}, b'{"first":-1,"next":1,"offset":0}')}, "the answer has no offsets"),
        ({"offsets": OFFSETS, "read": (200, {}, FRAME)}, "the answer has no offsets"),
        ({"offsets": OFFSETS, "read": (200, {"X-NSQ-First-Offset": "0", "X-NSQ-Next-Offset": "0"}, b"")}, "0 to 0"),
        ({"offsets": OFFSETS, "read": (200, {"X-NSQ-First-Offset": "0", "X-NSQ-Next-Offset": "2"}, FRAME)}, "up to"),
        ({"offsets": OFFSETS, "read": (200, {"X-NSQ-First-Offset": "0", "X-NSQ-Next-Offset": "1"}, bytes(9))}, "frame"),
    ],
)
def test_an_invalid_answer_is_an_error(serve, answers, text):
    with pytest.raises(LogReadError, match=text):
        list(LogReader("t", nsqd_http_addresses=serve(answers), retry_timeout=0))


def test_an_nsqd_that_answers_at_once_with_nothing_is_not_asked_again_at_once():
    reading = LogReading("t", "h:1", (), "oldest", None, {"h:1": 0}, True, None, 60.0, 30.0, 1 << 20, {})
    steps = reading.read("h:1", "oldest")
    next(steps)
    assert isinstance(steps.send(HttpAnswer(200, "", OFFSETS[2], {})), Part)
    assert isinstance(next(steps), Request)
    pause = steps.send(HttpAnswer(200, "", b"", {"X-NSQ-First-Offset": "0", "X-NSQ-Next-Offset": "0"}))
    assert isinstance(pause, Pause)
    assert pause.seconds > 0
    assert isinstance(next(steps), Request)


def test_an_nsqlookupd_that_lists_others_with_each_look_has_no_more_read(caplog):
    options: SubscriptionOptions = {}
    reading = LogReading("t", (), "l:1", "oldest", None, None, True, None, 60.0, 30.0, 1 << 20, options)
    listed = [f"h:{port}" for port in range(1, MAX_NODES + 3)]
    assert len(reading.new_nodes(listed[:2])) == 2
    assert len(reading.new_nodes(listed[2:])) == MAX_NODES - 2
    assert reading.new_nodes(["other:1"]) == []
    assert "lists 2 further nsqd, which are not read" in caplog.text


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_an_nsqd_that_requires_tls_is_read_over_its_https_port(make_nsqd, certificates):
    nsqd = make_nsqd(*certificates.options, "--tls-required")
    with Producer(nsqd.tcp_address, tls_v1=True, tls_options={"ca_certs": certificates.root_ca}) as producer:
        producer.publish("t", b"secret")
    for address in (nsqd.http_address, f"https://{nsqd.https_address}"):
        for tls in ({"ca_certs": certificates.root_ca}, {"cert_reqs": ssl.CERT_NONE}, certificates.trusting()):
            assert LogReader("t", nsqd_http_addresses=address, tls_options=tls).__next__().body == b"secret"
    with pytest.raises(LogReadError, match="TLS: "):
        list(LogReader("t", nsqd_http_addresses=nsqd.http_address, retry_timeout=0))
    with pytest.raises(FileNotFoundError):
        LogReader("t", nsqd_http_addresses=nsqd.http_address, tls_options={"ca_certs": "/nowhere"})


def test_the_name_in_the_certificate_of_nsqd_is_verified(make_nsqd, certificates):
    """Every client of the authority has a certificate."""
    own = certificates.client
    nsqd = make_nsqd(f"--tls-cert={own}", f"--tls-key={own}", "--https-address=127.0.0.1:0")
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"m")
    address, tls = f"https://{nsqd.https_address}", {"ca_certs": certificates.root_ca}
    with pytest.raises(LogReadError, match="TLS: "):
        list(LogReader("t", nsqd_http_addresses=address, tls_options=tls, auth_secret="s3cret", retry_timeout=0))
    unnamed = {**tls, "check_hostname": False}
    assert LogReader("t", nsqd_http_addresses=address, tls_options=unnamed).__next__().body == b"m"


def test_a_secret_is_not_sent_over_plain_http_to_an_nsqd_that_requires_tls(serve):
    asked: list[str] = []
    refusal: Answer = (403, {}, b'{"message":"TLS_REQUIRED","https_port":1}')
    address = serve({"/ping": refusal, "offsets": refusal}, asked)
    with pytest.raises(LogReadError, match="refused"):
        list(LogReader("t", nsqd_http_addresses=address, auth_secret="s3cret", retry_timeout=0))
    assert asked == ["/ping"]


def test_a_secret_is_sent_to_an_nsqd_that_accepts_plain_http(serve):
    asked: list[str] = []
    with pytest.raises(LogReadError, match="does not offer /topic/offsets"):
        list(LogReader("t", nsqd_http_addresses=serve({}, asked), auth_secret="s3cret"))
    assert [request.partition(" ")[2] for request in asked] == ["", "Bearer s3cret"]


@pytest.mark.parametrize("status", [500, 400])
def test_what_an_nsqd_says_is_one_short_line_of_errors_and_of_the_log(serve, status, caplog):
    said = json.dumps({"message": "x\nERROR forged \x1b[2J" + "y" * 5000}).encode()
    with pytest.raises(LogReadError, match=r"answered \d+ x\\nERROR forged \\x1b") as error:
        list(LogReader("t", nsqd_http_addresses=serve({"offsets": (status, {}, said)}), retry_timeout=0.01))
    texts = [str(error.value), *(record.getMessage() for record in caplog.records)]
    assert all(text.isprintable() and len(text) < 1200 for text in texts)


def test_a_password_in_an_address_is_not_shown(serve, caplog):
    for status in (400, 500):
        address = f"http://me:s3cret@{serve({'offsets': (status, {}, b'{}')})}"
        with pytest.raises(LogReadError) as error:
            list(LogReader("t", nsqd_http_addresses=address, retry_timeout=0.01))
        assert "s3cret" not in str(error.value) + caplog.text


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("h:1", "https://h:443"),
        ("h", "https://h:443"),
        ("http://user:word@h", "https://user:word@h:443"),  # not to the host `user`
        ("http://user@h:1", "https://user@h:443"),
        ("http://[::1]", "https://[::1]:443"),
        ("[::1]:1", "https://[::1]:443"),
    ],
)
def test_the_port_of_tls_is_one_of_the_same_host(address, url):
    options: SubscriptionOptions = {"auth_secret": "s3cret"}
    reading = LogReading("t", address, (), "oldest", None, None, False, None, 60.0, 30.0, 1 << 20, options)
    routine = reading.range_of(address)
    next(routine)
    request = routine.send(HttpAnswer(403, "", b'{"https_port":443}', {}))
    assert isinstance(request, Request)
    assert request.url.startswith(f"{url}/topic/offsets?")
    assert request.headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("port", ['"1@localhost"', "[1]", "-1", "70000", "true"])
def test_a_port_of_tls_cannot_name_another_host(serve, port):
    asked: list[str] = []
    refusal: Answer = (403, {}, f'{{"message":"TLS_REQUIRED","https_port":{port}}}'.encode())
    with pytest.raises(LogReadError, match="answered 403 TLS_REQUIRED"):
        list(LogReader("t", nsqd_http_addresses=serve({"offsets": refusal}, asked)))
    assert len(asked) == 1
