"""Spark itself is killed in the middle of a stream, again and again: what arrives is everything, once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from tests.spark.conftest import Publish

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("stream_program.py")
MESSAGES = 20_000
KILLS = 3


@contextlib.contextmanager
def running(options: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(PROGRAM), json.dumps(options), str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as program:
        yield program


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline()


def spooled(folder: Path) -> set[Path]:
    return set(folder.glob("*/*/*/*.spool"))


def kill_in_the_middle(victim: str, options: dict[str, str], folder: Path) -> None:
    """Run the program, and kill its JVM, or itself, when a task has begun to spool what none had before."""
    before = spooled(folder)
    with running(options, folder) as program:
        pid = int(line_of(program)) if victim == "jvm" else program.pid
        line = "" if victim == "jvm" else line_of(program)
        while spooled(folder) <= before and program.poll() is None:
            time.sleep(0.005)
        assert program.poll() is None, f"it ended before it could be killed {line}"
        os.kill(pid, signal.SIGKILL)


def wait_until_nothing_is_in_flight(nsqd: NsqdProcess, topic: str) -> None:
    while nsqd.channel_stats(topic, "c")["in_flight_count"]:
        time.sleep(0.1)


@pytest.mark.parametrize("victim", ["jvm", "program"])
def test_a_killed_query_goes_on_where_it_was(
    nsqd: NsqdProcess, topic: str, written: dict[str, str], publish: Publish, tmp_path: Path, victim: str
):
    publish(MESSAGES)
    options = written | {"maxMessagesPerTrigger": "4000", "msgTimeoutMs": "3000", "idleTimeoutMs": "300"}
    for _ in range(KILLS):
        kill_in_the_middle(victim, options, tmp_path)
    wait_until_nothing_is_in_flight(nsqd, topic)
    with running(options, tmp_path) as program:
        line_of(program)
        assert json.loads(line_of(program)) == [MESSAGES, MESSAGES]
    assert nsqd.channel_stats(topic, "c")["depth"] == 0
