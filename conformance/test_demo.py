"""The demonstration of ``scripts/run``: it must detect errors and leave no process running."""

import functools
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.demo.event import EVENTS_A_SECOND, PAGES, events
from nsq_conformance.demo.stream import CHANNELS, TOPIC
from nsq_conformance.nsqd_process import installed_nsqd

_ROOT = Path(__file__).parents[1]

_FREE_PORTS = [f"--{name}-port=0" for name in ("tcp", "http", "lookupd-tcp", "lookupd-http", "admin")]


@pytest.fixture
def daemons(nsqd_command: str, nsqlookupd_command: str) -> list[str]:
    """Options with the daemons to run."""
    return [f"--nsqd={nsqd_command}", f"--nsqlookupd={nsqlookupd_command}"]


def start_demo(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nsq_conformance.demo", *_FREE_PORTS, *options],
        cwd=_ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_sends_a_file_compares_and_stops(daemons: list[str]) -> None:
    demo = start_demo(*daemons, "--once", "--no-spark", f"--file={__file__}")
    output, errors = demo.communicate(timeout=150)
    assert demo.returncode == 0, errors
    assert "came back exactly once" in output
    assert "Spark" not in output


def test_a_new_channel_receives_every_line_again(nsqlookupd_command: str, tmp_path: Path) -> None:
    count = len(Path(__file__).read_bytes().splitlines())
    for _ in range(2):  # also where an earlier run has left its lines
        options = ("--once", "--no-spark", f"--file={__file__}", f"--data-path={tmp_path}")
        demo = start_demo(f"--nsqd={installed_nsqd()}", f"--nsqlookupd={nsqlookupd_command}", *options)
        output, errors = demo.communicate(timeout=150)
        assert demo.returncode == 0, errors
        assert f"received all {count} lines again" in output


def test_the_machine_of_a_mirrored_nsqd_is_lost_and_no_event(nsqlookupd_command: str) -> None:
    options = ("--once", "--no-spark", "--mirror", f"--file={__file__}")
    demo = start_demo(f"--nsqd={installed_nsqd()}", f"--nsqlookupd={nsqlookupd_command}", *options)
    output, errors = demo.communicate(timeout=150)
    assert demo.returncode == 0, errors
    assert "none lost: the consumer received all" in output


@pytest.mark.timeout(600)
def test_spark_counts_every_event_it_has_read(daemons: list[str], tmp_path: Path) -> None:
    demo = start_demo(*daemons, "--once", f"--file={__file__}", f"--data-path={tmp_path}")
    output, errors = demo.communicate(timeout=590)
    assert demo.returncode == 0, errors
    _, _, counts = output.partition("or several on a busy machine\n")
    progress = [line for line in counts.splitlines() if line.startswith("batch ")]
    head, *rows = [line.split() for line in counts.splitlines() if line not in progress]
    assert (head[0], head[-1]) == ("key", "total")
    assert {key for key, *_ in rows} <= set(PAGES)
    total = sum(int(row[-1].replace(",", "")) for row in rows)
    assert f": {total:,} messages so far, " in progress[-1]
    assert total > 10


@pytest.mark.timeout(600)
def test_spark_runs_until_the_demonstration_ends(daemons: list[str], tmp_path: Path) -> None:
    demo = start_demo(*daemons, f"--file={__file__}", TMPDIR=str(tmp_path))
    addresses_of(demo)
    (counts,) = tmp_path.glob("*/spark/counts")
    # On a busy machine a table may be written before the first line of progress.
    while not any(line.startswith("batch ") for line in counts.read_text().splitlines()):
        assert demo.poll() is None
        time.sleep(0.1)
    assert processes_naming(f"--checkpoint={tmp_path}")
    assert demo.stdout is not None
    assert any(f"first table; to watch, run in another terminal: tail -f {counts}" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=120)
    assert demo.returncode == 0, errors
    assert not processes_naming(str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_runs_until_a_signal_and_stops_the_daemons(daemons: list[str], number: int, tmp_path: Path) -> None:
    demo = start_demo(*daemons, "--no-spark", f"--file={__file__}", f"--data-path={tmp_path}")
    assert demo.stdout is not None
    assert any("nsqlookupd, for nsqd on" in line for line in demo.stdout)
    demo.send_signal(number)
    output, errors = demo.communicate(timeout=150)
    assert demo.returncode == 0, errors
    assert "stopping nsqadmin, nsqd and nsqlookupd" in output
    assert not processes_naming(str(tmp_path))


def test_events_flow_through_two_channels_after_the_comparison(daemons: list[str]) -> None:
    demo = start_demo(*daemons, "--no-spark", f"--file={__file__}")
    try:
        nsqlookupd, _, nsqadmin = addresses_of(demo)
        shown = functools.partial(channel_of_events, nsqadmin)
        eventually(lambda: all(finished(shown(name)) for name in CHANNELS))
        before = {name: shown(name) for name in CHANNELS}
        # Several seconds' worth, to show that the stream keeps running.
        eventually(lambda: all(finished(shown(name)) > finished(before[name]) + 200 for name in CHANNELS))
        for name in CHANNELS:
            assert shown(name)["message_count"] > before[name]["message_count"] + 200
        eventually(lambda: shown("billing")["requeue_count"] > before["billing"]["requeue_count"])
    finally:
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=150)
    assert demo.returncode == 0, errors
    assert not processes_naming(f"--lookupd-http-address={nsqlookupd}")


def test_the_unexpected_end_of_a_stream_is_reported_and_ends_the_demonstration(daemons: list[str]) -> None:
    demo = start_demo(*daemons, "--no-spark", f"--file={__file__}")
    _, nsqd, _ = addresses_of(demo)
    (publisher,) = processes_naming("nsq_conformance.demo.events", f"--nsqd-tcp-address={nsqd}")
    os.kill(publisher, signal.SIGKILL)
    _, errors = demo.communicate(timeout=150)
    assert demo.returncode == 1
    assert "the publisher of events ended unexpectedly with status -9" in errors


def test_a_seed_always_gives_the_same_events() -> None:
    story, again, other = (list(itertools.islice(events(seed), 500)) for seed in (7, 7, 8))
    assert story == again != other


def test_events_are_in_order_at_the_requested_rate() -> None:
    shown = [event.published for event in itertools.takewhile(lambda event: event.published < 3600, events(1))]
    assert shown == sorted(shown)
    assert 0.9 < len(shown) / 3600 / EVENTS_A_SECOND < 1.1


def test_it_fails_when_nsqd_cannot_start(tmp_path: Path) -> None:
    demo = start_demo("--nsqd=/no/such/nsqd", f"--data-path={tmp_path}")
    _, errors = demo.communicate(timeout=150)
    assert demo.returncode == 1
    assert "cannot start /no/such/nsqd" in errors


def test_ports_in_use_are_all_named_with_their_options_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
        demo = start_demo(f"--http-port={ports[0]}", f"--admin-port={ports[1]}", "--no-spark")
        output, errors = demo.communicate(timeout=150)
    reason = "(address already in use)"
    assert (demo.returncode, output) == (1, "")
    assert errors == (
        f"scripts/run: cannot listen on port {ports[0]} of --http-port {reason}, port {ports[1]} of --admin-port "
        f"{reason}; choose other ports with these options, 0 for any\n"
    )


def addresses_of(demo: "subprocess.Popen[str]") -> tuple[str, str, str]:
    """Wait for the HTTP address of nsqlookupd, TCP of nsqd and HTTP of nsqadmin in the output."""
    assert demo.stdout is not None
    patterns = (
        r" *http://(\S+?)/nodes +nsqlookupd",
        r" .* nsqd, for clients on (\S+)",
        r" *http://(\S+?)/ +nsqadmin",
    )
    found = [match[1] for line in _until_it_stays(demo.stdout) for each in patterns if (match := re.match(each, line))]
    nsqadmin, nsqd, nsqlookupd = found
    return nsqlookupd, nsqd, nsqadmin


def _until_it_stays(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if "nsqlookupd, for nsqd on" in line:
            return


def channel_of_events(nsqadmin: str, channel: str) -> dict[str, Any]:
    """The channel in nsqadmin's API; empty if there is none yet."""
    try:
        with urlopen(f"http://{nsqadmin}/api/topics/{TOPIC}/{channel}", timeout=10) as answer:
            shown: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        error.close()
        return {}
    return shown


def finished(channel: dict[str, Any]) -> int:
    """The number of messages that the consumers of a channel have finished."""
    return sum(client["finish_count"] for client in channel.get("clients") or ())


def processes_naming(*texts: str) -> list[int]:
    """The ids of running processes with all the texts in their command lines."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command_line = Path("/proc", entry, "cmdline").read_text()
        except OSError:  # the process has ended meanwhile
            continue
        if all(text in command_line for text in texts):
            found.append(int(entry))
    return found
