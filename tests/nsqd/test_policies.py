"""Policies of a live nsqd: read from its config file, changed while it runs, and what clients notice."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.cli.kinds import OptionError
from nsq_compat.nsqd.startup import load_policies
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.v2_client import GONE, Client, Refused

TWICE = '[[policies]]\ntopic = "orders"\nmax_attempts = 2\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nsqd.cfg"
    path.write_text(TWICE)
    return path


@pytest.fixture
def start(tmp_path: Path, config: Path) -> Iterator[Callable[[], NsqdProcess]]:
    with ExitStack() as running:
        yield lambda: running.enter_context(
            NsqdProcess(installed_nsqd(), tmp_path, options=[f"--config={config}", "--sync-timeout=50ms"])
        )


@pytest.fixture
def nsqd(start: Callable[[], NsqdProcess]) -> NsqdProcess:
    return start()


@pytest.fixture
def connect(nsqd: NsqdProcess) -> Iterator[Callable[[], Client]]:
    with ExitStack() as clients:
        yield lambda: clients.enter_context(Client(nsqd.tcp_address))


def in_force(nsqd: NsqdProcess) -> Any:
    return nsqd.asks("GET", "/config/policies").json()


def put(nsqd: NsqdProcess, policies: object) -> tuple[int, Any]:
    answer = nsqd.asks("PUT", "/config/policies", json.dumps(policies).encode())
    return answer.status, answer.json()


def fail_until_gone(consumer: Client, body: bytes, times: int) -> None:
    for attempt in range(1, times + 1):
        (message,) = consumer.takes(1)
        assert (message.body, message.attempts) == (body, attempt)
        consumer.requeues(message)


def test_a_message_that_fails_often_enough_goes_to_the_dead_letter_topic(nsqd, connect):
    consumer = connect()
    consumer.subscribes(b"orders", b"archive", ready=1)
    connect().publishes(b"bad", topic=b"orders")
    fail_until_gone(consumer, b"bad", 2)
    eventually(lambda: nsqd.channel_stats("orders", "archive").get("dead_letter_count") == 1)
    stats = nsqd.channel_stats("orders", "archive")
    assert stats["policy"] == {"max_attempts": 2, "dead_letter_topic": "orders.archive.dead"}
    assert (stats["depth"], stats["in_flight_count"]) == (0, 0)
    reader = connect()
    reader.subscribes(b"orders.archive.dead", b"redrive", ready=1)
    assert [message.body for message in reader.takes(1)] == [b"bad"]
    assert nsqd.logs("CHANNEL(orders:archive): dead letters moved to orders.archive.dead: 1")


def test_without_policies_stats_do_not_change(nsqd):
    nsqd.create_channel("clicks", "archive")
    assert not {"policy", "dead_letter_count", "rejected_count"} & set(nsqd.channel_stats("clicks", "archive"))


def test_sighup_reads_policies_again_and_a_bad_file_changes_nothing(nsqd, config, connect):
    consumer = connect()
    consumer.subscribes(b"orders", b"archive", ready=1)
    config.write_text("[[policies]]\nmax_attempts = 3\n")
    nsqd.send_signal(signal.SIGHUP)
    eventually(lambda: in_force(nsqd) == [{"max_attempts": 3}])
    config.write_text("[[policies]]\nmax_attempts = 3\nmax_dept = 1\n")
    nsqd.send_signal(signal.SIGHUP)
    reason = f"failed to load config file {config} - line 3: policy 1: max_dept: unknown setting"
    assert nsqd.logs(f"ERROR: keeping the policies in force - {reason}")
    assert in_force(nsqd) == [{"max_attempts": 3}]
    connect().publishes(b"bad", topic=b"orders")
    fail_until_gone(consumer, b"bad", 3)
    eventually(lambda: nsqd.channel_stats("orders", "archive").get("dead_letter_count") == 1)
    config.unlink()
    nsqd.send_signal(signal.SIGHUP)
    assert nsqd.logs("no such file or directory")
    assert in_force(nsqd) == [{"max_attempts": 3}]


def test_policies_can_be_put_over_http_and_bad_ones_change_nothing(nsqd, connect):
    nsqd.create_channel("orders", "archive")
    producer = connect()
    producer.publishes(b"a", topic=b"orders")
    assert put(nsqd, [{"max_depth": 1}]) == (200, [{"max_depth": 1}])
    with pytest.raises(Refused, match=r"E_PUB_FAILED PUB failed channel orders:archive is full \(max_depth\)"):
        producer.publishes(b"b", topic=b"orders")
    answer = nsqd.asks("POST", "/pub?topic=orders", b"b")
    assert (answer.status, answer.json()) == (503, {"message": "TOPIC_FULL"})
    assert put(nsqd, [{"max_depth": 0}]) == (
        400,
        {"message": "INVALID_VALUE: policy 1: max_depth: must be an integer from 1 to 9223372036854775807"},
    )
    assert put(nsqd, {"max_depth": 5}) == (400, {"message": "INVALID_VALUE: policies must be a list of tables"})
    assert in_force(nsqd) == [{"max_depth": 1}]
    assert nsqd.channel_stats("orders", "archive")["rejected_count"] == 2
    assert put(nsqd, []) == (200, [])
    connect().publishes(b"b", topic=b"orders")


def test_the_oldest_messages_are_dropped_and_counted(nsqd, connect):
    put(nsqd, [{"max_depth": 2, "when_full": "drop-oldest"}])
    nsqd.create_channel("orders", "archive")
    connect().publishes_together([b"a", b"b", b"c", b"d"], b"orders")
    eventually(lambda: nsqd.channel_stats("orders", "archive").get("dropped_count") == 2)
    consumer = connect()
    consumer.subscribes(b"orders", b"archive", ready=10)
    assert [message.body for message in consumer.takes(2)] == [b"c", b"d"]


def test_a_rate_limits_a_consumer_below_its_rdy(nsqd, connect):
    put(nsqd, [{"max_rate": 0.001, "burst": 3}])
    consumer = connect()
    consumer.subscribes(b"orders", b"archive", ready=100)
    connect().publishes_together([b"%d" % number for number in range(10)], b"orders")
    assert len(consumer.takes(3)) == 3
    eventually(lambda: nsqd.channel_stats("orders", "archive")["depth"] == 7)
    put(nsqd, [])
    assert len(consumer.takes(7)) == 7


def test_max_in_flight_limits_all_consumers_of_a_channel_together(nsqd, connect):
    put(nsqd, [{"max_in_flight": 3}])
    consumers = [connect(), connect()]
    for consumer in consumers:
        consumer.subscribes(b"orders", b"archive", ready=100)
    connect().publishes_together([b"%d" % number for number in range(10)], b"orders")
    eventually(lambda: nsqd.channel_stats("orders", "archive")["in_flight_count"] == 3)
    assert nsqd.channel_stats("orders", "archive")["depth"] == 7
    taken: list[bytes] = []
    while len(taken) < 10:
        for client in nsqd.channel_stats("orders", "archive")["clients"]:
            consumer = consumers[[each.local_address for each in consumers].index(client["remote_address"])]
            messages = consumer.takes(client["in_flight_count"])
            consumer.finishes(messages)
            taken += [message.body for message in messages]
        assert nsqd.channel_stats("orders", "archive")["in_flight_count"] <= 3
    assert sorted(taken) == [b"%d" % number for number in range(10)]


def test_an_exclusive_channel_has_one_active_consumer_until_that_is_closed(nsqd, connect):
    put(nsqd, [{"channel": "archive", "exclusive": True}])
    first, second = connect(), connect()
    first.subscribes(b"orders", b"archive", ready=100)
    second.subscribes(b"orders", b"archive", ready=100)
    producer = connect()
    for number in range(20):
        producer.publishes(b"%d" % number, topic=b"orders")
    messages = first.takes(20)
    assert [message.body for message in messages] == [b"%d" % number for number in range(20)]
    first.finishes(messages)
    stats = nsqd.channel_stats("orders", "archive")
    assert stats["policy"] == {"exclusive": True}
    assert {each["remote_address"]: each.get("active") for each in stats["clients"]} == {
        first.local_address: True,
        second.local_address: None,
    }
    text = nsqd.asks("GET", "/stats?topic=orders&channel=archive").body.decode()
    assert [line.endswith(" active") for line in text.splitlines() if " state: " in line] == [True, False]
    answer = nsqd.asks("POST", f"/client/close?topic=orders&channel=archive&address={first.local_address}")
    assert answer.status == 200, answer.body
    producer.publishes(b"more", topic=b"orders")
    assert [message.body for message in second.takes(1)] == [b"more"]
    assert [each.get("active") for each in nsqd.channel_stats("orders", "archive")["clients"]] == [True]
    put(nsqd, [])
    assert [each.get("active") for each in nsqd.channel_stats("orders", "archive")["clients"]] == [None]
    with pytest.raises(GONE):
        first.takes(1)


def test_a_producer_is_closed_by_its_address(nsqd, connect):
    producer = connect()
    producer.publishes(b"m", topic=b"orders")
    assert nsqd.asks("POST", f"/client/close?address={producer.local_address}").status == 200
    with pytest.raises(GONE):
        producer.answer()
    eventually(lambda: nsqd.asks("POST", f"/client/close?address={producer.local_address}").status == 404)


def test_dead_letters_stay_after_a_clean_stop(nsqd, start, connect):
    consumer = connect()
    consumer.subscribes(b"orders", b"archive", ready=1)
    connect().publishes(b"bad", topic=b"orders")
    fail_until_gone(consumer, b"bad", 1)
    (message,) = consumer.takes(1)
    consumer.requeues(message)
    consumer.says(b"CLS\n").answer()  # behind the REQ
    assert nsqd.stop() == 0
    again = start()
    assert again.channel_stats("orders", "archive")["depth"] == 0
    assert again.channel_stats("orders.archive.dead", "redrive")["depth"] == 1


def test_check_config_names_the_line(tmp_path, config):
    command = [sys.executable, "-m", "nsq_compat.nsqd.main", f"--config={config}", f"--data-path={tmp_path}"]
    command += ["--check-config", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    config.write_text(TWICE + "when_full = 5\n")
    refused = subprocess.run(command, capture_output=True, check=False, text=True)
    assert refused.returncode == 1
    assert f'{config} - line 4: policy 1: when_full: must be "reject" or "drop-oldest"' in refused.stderr


# --- The config file --------------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    path = tmp_path / "nsqd.cfg"

    def write_file(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write_file


def complaint(path: str) -> str:
    with pytest.raises(OptionError) as caught:
        load_policies(path)
    return str(caught.value).removeprefix(f"failed to load config file {path} - ")


def test_without_a_file_or_tables_there_are_no_policies(write):
    assert len(load_policies(write('tcp_address = "0.0.0.0:4150"\n'))) == 0
    assert len(load_policies("")) == 0


def test_policies_are_tables_beside_the_options(write):
    policies = load_policies(write('tcp_address = "x:1"\n[[policies]]\nmax_rate = 1\n[[policies]]\nmax_depth = 2\n'))
    assert policies.written == [{"max_rate": 1}, {"max_depth": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'log_level = "info"\n\n[[policies]]\nmax_rate = 1\n[[ "policies" ]]\ntopic = "a"\nmax_depth = 0\n',
            "line 7: policy 2: max_depth: must be an integer from 1 to 9223372036854775807",
        ),
        (
            '\n[[policies]] # all\ntopic = "a"\n[[policies]]\nmax_rate = 1\n',
            "line 2: policy 1: needs max_attempts, max_depth, max_bytes, max_age, max_rate, "
            "max_in_flight, exclusive, retain_for, retain_bytes, dedup_window, max_topics, max_channels or "
            "max_creations_per_second",
        ),
        ("policies = [{max_rate = 0}]\n", "policy 1: max_rate: must be a number above 0 (messages per second)"),
        ("policies = 5\n", "policies must be a list of tables"),
    ],
)
def test_an_error_names_the_line_if_it_is_found(write, text, expected):
    assert complaint(write(text)) == expected


def test_clients_create_only_so_many_topics_and_channels(nsqd, connect):
    nsqd.create_channel("orders", "archive")
    put(nsqd, [{"topic": "orders|new.*", "max_topics": 2, "max_channels": 1}])
    connect().publishes(b"a", topic=b"new1")
    connect().publishes(b"a", topic=b"other1")
    for producer, body in ((connect(), b"PUB new2\n\0\0\0\1a"), (connect(), b"MPUB new2\n\0\0\0\x09\0\0\0\1\0\0\0\1a")):
        with pytest.raises(Refused, match=r"E_M?PUB_FAILED M?PUB failed topic new2 is not created \(max_topics\)"):
            producer.says(body).answer()
    with pytest.raises(Refused, match=r"E_SUB_FAILED SUB failed topic new2 is not created \(max_topics\)"):
        connect().subscribes(b"new2", b"c")
    with pytest.raises(Refused, match=r"E_SUB_FAILED SUB failed channel orders:more is not created \(max_channels\)"):
        connect().subscribes(b"orders", b"more")
    connect().subscribes(b"orders", b"archive")
    connect().subscribes(b"other2", b"c")
    for target, code in (
        ("/pub?topic=new2", "TOO_MANY_TOPICS"),
        ("/topic/create?topic=new2", "TOO_MANY_TOPICS"),
        ("/channel/create?topic=orders&channel=more", "TOO_MANY_CHANNELS"),
        ("/channel/create?topic=orders&channel=more&from=oldest", "TOO_MANY_CHANNELS"),
    ):
        answer = nsqd.asks("POST", target, b"x")
        assert (answer.status, answer.json()) == (503, {"message": code}), target
    assert b'nsqd_creations_refused_total{limit="max_channels"} 3.0' in nsqd.asks("GET", "/metrics").body
    assert nsqd.logs("creations refused, the last of topic new2 (max_topics)")
    assert nsqd.asks("POST", "/topic/delete?topic=new1").status == 200
    connect().publishes(b"a", topic=b"new2")
    assert sorted(topic["topic_name"] for topic in nsqd.stats_document()["topics"]) == [
        "new2",
        "orders",
        "other1",
        "other2",
    ]


def test_clients_create_only_so_many_in_a_second_and_the_config_file_can_lift_that(nsqd, config, connect):
    put(nsqd, [{"max_creations_per_second": 0.001}])
    connect().publishes(b"a", topic=b"t1")
    answer = nsqd.asks("POST", "/pub?topic=t2", b"x")
    assert (answer.status, answer.json()) == (429, {"message": "TOO_MANY_CREATIONS"})
    connect().publishes(b"a", topic=b"t1")
    with pytest.raises(Refused, match=r"channel t1:c is not created \(max_creations_per_second\)"):
        connect().subscribes(b"t1", b"c")
    config.write_text("")
    nsqd.send_signal(signal.SIGHUP)
    eventually(lambda: in_force(nsqd) == [])
    connect().publishes(b"a", topic=b"t2")
