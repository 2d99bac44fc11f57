"""Start and stop of nsqd: refused options, persistence, shutdown."""

import json
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient

Start = Callable[..., NsqdProcess]
CODE_OF_A_BAD_FLAG = 2


@pytest.fixture
def start(nsqd_command: str, tmp_path: Path) -> Iterator[Start]:
    """Start an nsqd with the same data path as the one before."""
    with ExitStack() as processes:

        def begin(*options: str) -> NsqdProcess:
            return processes.enter_context(NsqdProcess(nsqd_command, tmp_path, options=options))

        yield begin


def run(nsqd_command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run an nsqd that is expected to end at once."""
    command = [*shlex.split(nsqd_command), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_termination_signal_exits_with_status_0(start: Start, number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    assert process.stop() == 0


def test_queued_messages_survive_a_restart(start: Start) -> None:
    process = start()
    with RawClient(process.tcp_address) as client:
        client.subscribes("t").publishes("t", b"a", b"b").publishes("lonely", b"c")
    process.stop()
    process = start()
    with RawClient(process.tcp_address) as client, RawClient(process.tcp_address) as other:
        assert sorted(client.subscribes("t", ready=5).bodies(2)) == [b"a", b"b"]
        assert other.subscribes("lonely", ready=5).bodies(1) == [b"c"]


def test_messages_in_flight_survive_a_restart_as_the_next_attempt(start: Start) -> None:
    process = start()
    with RawClient(process.tcp_address) as client:
        message = client.publishes("t", b"x").subscribes("t", ready=1).message()
        process.stop()
    process = start()
    with RawClient(process.tcp_address) as client:
        assert client.subscribes("t", ready=1).message() == message._replace(attempts=2)


def test_finished_messages_do_not_return_after_a_restart(start: Start) -> None:
    process = start()
    with RawClient(process.tcp_address) as client:
        client.publishes("t", b"x").subscribes("t", ready=1)
        client.finishes(client.message()).has_been_heard()
    process.stop()
    assert start().channel_stats("t", "ch")["depth"] == 0


def test_topics_channels_and_pauses_survive_a_restart(start: Start) -> None:
    process = start()
    process.create_channel("t", "ch")
    process.create_channel("p", "ch")
    assert process.asks("POST", "/topic/pause?topic=p").status == 200
    assert process.asks("POST", "/channel/pause?topic=t&channel=ch").status == 200
    process.stop()
    process = start()
    paused = {each["topic_name"]: (each["paused"], each["channels"][0]["paused"]) for each in topics(process)}
    assert paused == {"t": (False, True), "p": (True, False)}


def topics(process: NsqdProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = process.stats_document()["topics"]
    return found


def test_ephemeral_topics_and_channels_do_not_survive_a_restart(start: Start) -> None:
    process = start()
    process.create_channel("t", "ch#ephemeral")
    process.create_channel("e#ephemeral", "ch")
    process.stop()
    (only,) = topics(start())
    assert (only["topic_name"], only["channels"]) == ("t", [])


def test_topics_and_channels_are_in_nsqd_dat(start: Start, tmp_path: Path) -> None:
    process = start()
    process.create_channel("t", "ch")
    process.stop()
    document = json.loads((tmp_path / "nsqd.dat").read_text())
    channels = [{"name": "ch", "paused": False}]
    assert document == {"topics": [{"name": "t", "paused": False, "channels": channels}], "version": "1.3.0"}


def test_topics_and_channels_of_nsqd_dat_exist_after_the_start(start: Start, tmp_path: Path) -> None:
    channels = [{"name": "ch", "paused": True}]
    document = {"topics": [{"name": "t", "paused": False, "channels": channels}], "version": "1.3.0"}
    (tmp_path / "nsqd.dat").write_text(json.dumps(document))
    assert start().channel_stats("t", "ch")["paused"] is True


def test_invalid_names_in_nsqd_dat_are_skipped(start: Start, tmp_path: Path) -> None:
    document = {"topics": [{"name": name, "paused": False, "channels": None} for name in ("a$b", "t")]}
    (tmp_path / "nsqd.dat").write_text(json.dumps(document))
    assert [each["topic_name"] for each in topics(start())] == ["t"]


def test_an_nsqd_dat_of_null_counts_as_empty(start: Start, tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_text("null")
    assert topics(start()) == []


@pytest.mark.difference("damaged-metadata")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"topics":1}'])
def test_an_nsqd_dat_that_cannot_be_parsed_does_not_prevent_the_start(
    start: Start, tmp_path: Path, content: str
) -> None:
    (tmp_path / "nsqd.dat").write_text(content)
    process = start()
    assert topics(process) == []
    assert (tmp_path / "nsqd.dat.bad-1").read_text() == content


def test_clients_are_disconnected_without_an_error(start: Start) -> None:
    process = start()
    with RawClient(process.tcp_address) as client:
        client.subscribes("t", ready=1)
        process.send_signal(signal.SIGTERM)
        assert client.is_closed()


@pytest.mark.difference("magic")
def test_a_silent_connection_does_not_delay_the_shutdown(start: Start) -> None:
    process = start()
    with RawClient(process.tcp_address, magic=b""):
        eventually(lambda: process.logs("new client"))
        process.send_signal(signal.SIGTERM)
        assert process.stop(timeout=5) == 0


def test_a_data_path_belongs_to_one_nsqd(start: Start, nsqd_command: str, tmp_path: Path) -> None:
    start()
    ended = run(nsqd_command, f"--data-path={tmp_path}")
    assert ended.returncode == 1
    assert "FATAL: failed to instantiate nsqd - failed to lock data-path: " in ended.stderr


def test_a_missing_data_path_is_not_created(nsqd_command: str, tmp_path: Path) -> None:
    ended = run(nsqd_command, f"--data-path={tmp_path}/none")
    assert ended.returncode == 1
    assert f"failed to lock data-path: open {tmp_path}/none: no such file or directory" in ended.stderr
    assert not (tmp_path / "none").exists()


def test_an_address_in_use_ends_the_start(nsqd_command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run(nsqd_command, f"--data-path={tmp_path}", f"--tcp-address={address}")
    assert ended.returncode == 1
    assert f"FATAL: failed to instantiate nsqd - listen ({address}) failed - " in ended.stderr


UNUSABLE = {
    "a node id out of range": ("--node-id=1024", "--node-id must be [0,1024)"),
    "a level of deflate out of range": ("--max-deflate-level=10", "--max-deflate-level must be [1,9]"),
    "no level of deflate": ("--max-deflate-level=0", "--max-deflate-level must be [1,9]"),
    "TLS without a certificate": (
        "--tls-required=true",
        "cannot require TLS client connections without TLS key and cert",
    ),
    "an invalid method for auth": (
        "--auth-http-request-method=put",
        "--auth-http-request-method must be post or get",
    ),
    "a percentile above 1": (
        "--e2e-processing-latency-percentile=1.5",
        "invalid E2E processing latency percentile: 1.5",
    ),
}


@pytest.mark.parametrize(("option", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_start_is_refused_for(nsqd_command: str, tmp_path: Path, option: str, reason: str) -> None:
    ended = run(nsqd_command, f"--data-path={tmp_path}", option)
    assert ended.returncode == 1
    assert f"FATAL: failed to instantiate nsqd - {reason}" in ended.stderr


@pytest.mark.parametrize("option", ["--unknown", "--msg-timeout=soon", "--mem-queue-size=many", "--snappy=perhaps"])
def test_an_invalid_flag(nsqd_command: str, tmp_path: Path, option: str) -> None:
    assert run(nsqd_command, f"--data-path={tmp_path}", option).returncode == CODE_OF_A_BAD_FLAG


def test_the_version_is_that_of_nsq(nsqd_command: str) -> None:
    ended = run(nsqd_command, "--version")
    assert (ended.returncode, ended.stdout.split(" (")[0]) == (0, "nsqd v1.3.0")
