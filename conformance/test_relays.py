"""nsq_to_http and nsq_to_nsq, ours or Go's (``--utilities FOLDER``), with the nsqd to test."""

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess

Start = Callable[..., "subprocess.Popen[bytes]"]
Seen = list[tuple[str, str, bytes]]


@pytest.fixture
def web() -> Iterator[tuple[str, Seen]]:
    """The address of a web server, and its recorded requests: method, path, body."""
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 200

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def destination(nsqd_command: str, tmp_path: Path) -> Iterator[NsqdProcess]:
    with NsqdProcess(nsqd_command, tmp_path) as process:
        yield process


def publish(nsqd: NsqdProcess, topic: str, *bodies: bytes) -> None:
    nsqd.create_channel(topic, "c")
    for body in bodies:
        urlopen(Request(f"http://{nsqd.http_address}/pub?topic={topic}", data=body, method="POST"), timeout=10).close()


def is_idle(nsqd: NsqdProcess, topic: str) -> bool:
    stats = nsqd.channel_stats(topic, "c")
    return bool(stats["depth"] == stats["in_flight_count"] == stats["deferred_count"] == 0)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Stop the program with SIGTERM, which must end with status 0."""
    process.terminate()
    assert process.wait(30) == 0


def relay(start: Start, program: str, nsqd: NsqdProcess, topic: str, *flags: str) -> "subprocess.Popen[bytes]":
    return start(program, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}", *flags)


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_nsq_to_http_posts_every_message(
    start: Start, nsqd: NsqdProcess, topic: str, web: tuple[str, Seen], mode: str
) -> None:
    url, seen = web
    bodies = [b"%d" % number for number in range(50)] + [b"\xff\0\n"]
    publish(nsqd, topic, *bodies)
    process = relay(start, "nsq_to_http", nsqd, topic, f"--mode={mode}", f"--post={url}/a", f"--post={url}/b")
    eventually(lambda: len(seen) == len(bodies))
    eventually(partial(is_idle, nsqd, topic))
    end(process)
    assert Counter(body for _, _, body in seen) == Counter(bodies)
    assert {path for _, path, _ in seen} == {"/a", "/b"}


def test_nsq_to_http_puts_messages_into_urls(
    start: Start, nsqd: NsqdProcess, topic: str, web: tuple[str, Seen]
) -> None:
    url, seen = web
    publish(nsqd, topic, "a b&c/é%".encode())
    relay(start, "nsq_to_http", nsqd, topic, f"--get={url}/?m=%s&p=%%20")
    eventually(lambda: seen)
    assert seen == [("GET", "/?m=a+b%26c%2F%C3%A9%25&p=%20", b"")]


def test_nsq_to_nsq_moves_every_message(start: Start, nsqd: NsqdProcess, destination: NsqdProcess, topic: str) -> None:
    publish(nsqd, topic, *[b"%d" % number for number in range(50)])
    destination.create_channel(topic, "c")
    process = relay(start, "nsq_to_nsq", nsqd, topic, f"--destination-nsqd-tcp-address={destination.tcp_address}")
    eventually(partial(is_idle, nsqd, topic))
    eventually(lambda: destination.channel_stats(topic, "c")["depth"] == 50)
    end(process)


FILTERED = {
    b'{"b":1.0,"a":"x","c":[]}': b'{"a":"x","b":1}',
    b'{"a":"y"}': None,
    b'{"a":"x","b":"<&>\\u00e9"}': '{"a":"x","b":"\\u003c\\u0026\\u003eé"}'.encode(),
    b'{"a":"x","b":[1e30,-0.0,{"z":1,"y":9007199254740993}]}': b'{"a":"x","b":[1e+30,-0,{"y":9007199254740992,"z":1}]}',
    b'{"a":"x","b":\t9007199254740993}': b'{"a":"x","b":9007199254740992}',
    b'{"a":"x","b":"\xff\\ud800"}': '{"a":"x","b":"\ufffd\ufffd"}'.encode(),
    b'{"a":"x","b":1e-7,"b":-0.0}': b'{"a":"x","b":0}',
}


def test_nsq_to_nsq_filters_json_messages(
    start: Start, nsqd: NsqdProcess, destination: NsqdProcess, topic: str, web: tuple[str, Seen]
) -> None:
    url, seen = web
    publish(nsqd, topic, *FILTERED)
    flags = ("--require-json-field=a", "--require-json-value=x", "--whitelist-json-field=a", "--whitelist-json-field=b")
    relay(start, "nsq_to_nsq", nsqd, topic, *flags, f"--destination-nsqd-tcp-address={destination.tcp_address}")
    relay(start, "nsq_to_http", destination, topic, f"--post={url}")
    wanted = [body for body in FILTERED.values() if body is not None]
    eventually(lambda: len(seen) == len(wanted))
    assert sorted(body for _, _, body in seen) == sorted(wanted)


@pytest.mark.parametrize(
    ("name", "flags", "complaint"),
    [
        ("nsq_to_http", [], b"--topic and --channel are required"),
        ("nsq_to_http", ["--topic=t", "--nsqd-tcp-address=h:1"], b"--get or --post required"),
        (
            "nsq_to_http",
            ["--topic=t", "--nsqd-tcp-address=h:1", "--get=http://h/"],
            b"invalid GET address - must be a printf string",
        ),
        ("nsq_to_http", ["--header=x"], b"--header value format should be 'key=value'"),
        ("nsq_to_nsq", [], b"--topic and --channel are required"),
        ("nsq_to_nsq", ["--topic=a b"], b"--topic is invalid"),
        ("nsq_to_nsq", ["--topic=t", "--nsqd-tcp-address=h:1"], b"--destination-nsqd-tcp-address required"),
    ],
)
def test_missing_flags_are_reported(
    utility: Callable[[str], str], name: str, flags: list[str], complaint: bytes
) -> None:
    done = subprocess.run([utility(name), *flags], capture_output=True, timeout=30, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
