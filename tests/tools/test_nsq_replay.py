"""nsq_replay with real nsqd: to standard output, and to other nsqd."""

import json
import signal

import pytest

from nsq_compat.client import LogReader, Producer
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd


def lines(begin, end):
    return b"".join(b"%d\n" % number for number in range(begin, end))


@pytest.fixture
def filled(nsqd, topic):
    """The topic has 2000 messages."""
    nsqd.publish(topic, *[b"%d" % number for number in range(2000)])
    return topic


@pytest.fixture
def of(nsqd, topic):
    return f"--topic={topic}", f"--nsqd-http-address={nsqd.http_address}"


@pytest.fixture
def replay(run, of):
    return lambda *flags: run("nsq_replay", *of, *flags)


def test_a_range_is_printed(nsqd, filled, replay):
    done = replay()
    assert (done.returncode, done.stdout) == (0, lines(0, 2000))
    assert b"replayed 2000 messages" in done.stderr
    assert replay("--from=10", "--to=20").stdout == lines(10, 20)
    assert replay("--from=1h", "--to=latest").stdout == lines(0, 2000)
    assert replay("--from=latest").stdout == b""
    assert nsqd.waiting(filled) == 2000


def test_a_dry_run_tells_how_many_there_are(nsqd, filled, replay):
    done = replay("--from=500", "--dry-run")
    would = f"1500 messages of {filled}, from 500 to 2000, would be replayed"
    assert (done.returncode, done.stdout.decode()) == (0, f"{nsqd.http_address}: {would}\n")


def test_messages_are_published_to_another_topic(nsqd, filled, replay):
    to = (f"--destination-nsqd-tcp-address={nsqd.tcp_address}", f"--destination-topic={filled}.again")
    nsqd.create_channel(f"{filled}.again", "c")
    done = replay("--from=1000", *to)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert nsqd.waiting(f"{filled}.again") == 1000
    assert nsqd.waiting(filled) == 2000


def test_a_further_run_goes_on_at_the_position_of_the_last_one(nsqd, filled, replay, tmp_path):
    file = tmp_path / "position"
    assert replay("--to=1200", f"--position-file={file}").stdout == lines(0, 1200)
    assert json.loads(file.read_text())["next_offsets"] == {nsqd.http_address: 1200}
    assert b" 800 messages" in replay(f"--position-file={file}", "--dry-run").stdout
    assert replay(f"--position-file={file}").stdout == lines(1200, 2000)
    assert replay(f"--position-file={file}").stdout == b""
    nsqd.publish(filled, b"new")
    assert replay(f"--position-file={file}").stdout == b"new\n"
    assert [path.name for path in tmp_path.iterdir()] == ["position"]


@pytest.mark.parametrize("more", [0, 1, 500])
def test_a_topic_that_was_created_again_is_not_taken_for_the_former_one(nsqd, filled, replay, tmp_path, more):
    file = tmp_path / "position"
    assert replay(f"--position-file={file}").stdout == lines(0, 2000)
    position = file.read_text()
    nsqd.asks("POST", f"/topic/delete?topic={filled}")
    nsqd.publish(filled, *lines(0, 2000 + more).splitlines())
    done = replay(f"--position-file={file}")
    assert (done.returncode, done.stdout, file.read_text()) == (1, b"", position)
    assert b"offset 1999 has another message than at the last run: this is another log of the topic" in done.stderr
    file.unlink()
    assert replay(f"--position-file={file}").stdout == lines(0, 2000 + more)


def test_a_last_message_that_was_released_ends_no_run(nsqd, filled, replay, tmp_path):
    file = tmp_path / "position"
    assert replay(f"--position-file={file}").stdout == lines(0, 2000)
    nsqd.asks("POST", f"/topic/empty?topic={filled}")
    nsqd.publish(filled, b"new")
    assert replay(f"--position-file={file}").stdout == b"new\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "this is no position file"),
        ("[]", "this is no position file"),
        ("[" * 100_000, "this is no position file"),
        ('{"next_offsets": {"a": "1"}}', "this is no position file"),
        *(
            (f'{{"next_offsets": {{}}, "last_messages": {last}}}', "this is no position file")
            for last in ("7", '{"a": 1}')
        ),
        ('{"next_offsets": {}}', "it is for another topic, None"),
        ('{"topic": "other", "next_offsets": {}}', "it is for another topic, other"),
    ],
)
def test_another_file_is_not_taken_for_a_position(filled, replay, tmp_path, content, text):
    file = tmp_path / "file"
    file.write_text(content)
    done = replay(f"--position-file={file}")
    assert (done.returncode, done.stdout, file.read_text()) == (1, b"", content)
    assert text in done.stderr.decode()


def test_a_position_file_that_cannot_be_written_is_an_error(filled, replay):
    done = replay("--position-file=/nowhere/position")
    assert done.returncode == 1
    assert b"--position-file=/nowhere/position: " in done.stderr


def test_after_a_signal_the_rest_can_be_replayed(filled, of, start, replay, tmp_path):
    file = tmp_path / "position"
    process = start("nsq_replay", *of, "--rate=10", f"--position-file={file}")
    wait_until(file.exists)
    process.send_signal(signal.SIGTERM)
    first, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    assert 0 < first.count("\n") < 2000
    rest = replay(f"--position-file={file}")
    assert first.encode() + rest.stdout == lines(0, 2000)


def test_after_a_kill_no_message_is_left_out(nsqd, filled, of, start, replay, tmp_path):
    file, copy = tmp_path / "position", f"{filled}.copy"
    nsqd.create_channel(copy, "c")
    to = (f"--destination-nsqd-tcp-address={nsqd.tcp_address}", f"--destination-topic={copy}")
    process = start("nsq_replay", *of, *to, "--rate=400", f"--position-file={file}")
    wait_until(lambda: file.exists() and nsqd.waiting(copy) > 500)
    process.kill()
    process.wait()
    assert replay(*to, f"--position-file={file}").returncode == 0
    copied = nsqd.waiting(copy)
    assert 2000 <= copied < 4000


def test_messages_that_the_destination_refuses_are_not_passed_over(nsqd, filled, replay, tmp_path):
    file = tmp_path / "position"
    (tmp_path / "small").mkdir()
    with Nsqd(installed_nsqd(), tmp_path / "small", options=["--max-msg-size=3"]) as small:
        to = (f"--destination-nsqd-tcp-address={small.tcp_address}", f"--position-file={file}")
        refused = replay(*to)
        assert refused.returncode == 1
        assert b"after 1000 messages: " in refused.stderr
        assert small.asks("GET", f"/topic/offsets?topic={filled}").json()["next"] == 1000
    assert json.loads(file.read_text())["next_offsets"] == {nsqd.http_address: 1000}


def test_a_destination_that_is_down_ends_it_before_anything_is_read(filled, replay):
    done = replay("--destination-nsqd-tcp-address=127.0.0.1:1")
    assert done.returncode == 1
    assert b"nsqd 127.0.0.1:1: connection refused" in done.stderr


def test_released_messages_are_an_error_that_names_the_first_offset(run, tmp_path):
    with Nsqd(installed_nsqd(), tmp_path, options=["--max-bytes-per-file=20000", "--sync-timeout=100ms"]) as node:
        node.create_channel("t", "c")
        for _ in range(10):
            node.publish("t", bytes(10_000))
        node.asks("POST", "/channel/empty?topic=t&channel=c")
        wait_until(lambda: node.asks("GET", "/topic/offsets?topic=t").json()["first"] > 0)
        done = run("nsq_replay", "--topic=t", f"--nsqd-http-address={node.http_address}", "--from=0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the message with offset 0 was released; the first offset is " in done.stderr


def test_lost_messages_are_passed_over_with_a_warning(run, tmp_path):
    (tmp_path / "data").mkdir()
    host = own_host()
    options = [f"--tcp-address={host}:0", f"--http-address={host}:0"]
    with Nsqd(installed_nsqd(), tmp_path / "data", options=options) as node:
        for number in range(5):
            node.publish("t", b"%d" % number * 2000)
        node.stop()
        (segment,) = tmp_path.glob("data/nsq_compat/t.topic/log.*")
        segment.write_bytes(segment.read_bytes().replace(b"2" * 2000, b"x" * 2000))
        node.start()
        done = run("nsq_replay", "--topic=t", f"--nsqd-http-address={node.http_address}")
        assert f"WARNING: nsqd {node.http_address}: the messages 2 to 2 are lost".encode() in done.stderr
    assert (done.returncode, done.stdout.split()) == (0, [b"%d" % number * 2000 for number in (0, 1, 3, 4)])
    assert b"replayed 4 messages; lost: 1" in done.stderr


def test_an_nsqd_of_go_is_named(run, serve_go):
    done = run("nsq_replay", "--topic=t", f"--nsqd-http-address={serve_go}")
    assert done.returncode == 1
    assert b"does not offer /topic/offsets: it is Go's nsqd" in done.stderr


def test_headers_are_replayed_and_an_id_gets_another_name(nsqd, topic, replay):
    nsqd.create_channel(f"{topic}.again", "c")
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"with", headers={"a": "b", "nsq-id": "1"})
        producer.publish(topic, b"without")
    done = replay(f"--destination-nsqd-tcp-address={nsqd.tcp_address}", f"--destination-topic={topic}.again")
    assert done.returncode == 0, done.stderr
    with LogReader(f"{topic}.again", nsqd_http_addresses=nsqd.http_address) as reader:
        assert [(message.body, dict(message.headers)) for message in reader] == [
            (b"with", {"a": "b", "nsq-origin-id": "1"}),
            (b"without", {}),
        ]
    assert replay().stdout == b"with\nwithout\n"


def test_a_link_beside_the_position_file_is_not_followed(filled, replay, tmp_path):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "position.new").symlink_to(other)
    assert replay("--to=10", f"--position-file={tmp_path / 'position'}").returncode == 0
    assert other.read_text() == "precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "position"]


def test_the_token_is_sent(run, target):
    target.answer = b'{"first":0,"next":0,"offset":0}'
    done = run("nsq_replay", "--topic=t", f"--nsqd-http-address={target.address}", "--token=s3cret", "--dry-run")
    assert (done.returncode, done.stdout) == (
        0,
        f"{target.address}: 0 messages of t, from 0 to 0, would be replayed\n".encode(),
    )
    assert target.requests[-1].headers["Authorization"] == "Bearer s3cret"
    run(
        "nsq_replay",
        "--topic=t",
        f"--nsqd-http-address={target.address}",
        "--dry-run",
        "--token=s3cret",
        "--consumer-opt=auth_secret,0ther",
    )
    assert target.requests[-1].headers["Authorization"] == "Bearer 0ther"
