"""mode=log: whatever is killed, Spark reads each message of two nsqd, found by nsqlookupd, once."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.spark.crash.conftest import Tell
from tests.spark.crash.dying_source import YIELDED, YIELDING
from tests.spark.crash.running import Kills, Outcome, Program, await_another, check_repeats, kill, wait_until
from tests.spark.crash.works import deaths

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

EACH = 25_000
"""Messages of an nsqd."""
TIMES = 3
CLUSTER = "local-cluster[2,1,1024]"
VICTIMS: dict[str, Callable[[Program], int]] = {
    "the driver's JVM": lambda program: program.jvm,
    "the program that started it": lambda program: program.pid,
    "the process that plans batches": lambda program: program.under_its_jvm("python_streaming_source_runner")[0],
}


@pytest.fixture
def nsqds(tmp_path: Path) -> Iterator[tuple[list[NsqdProcess], dict[str, str]]]:
    """Two nsqd that retain a topic of messages, and options that read it."""
    config = tmp_path / "nsqd.cfg"
    config.write_text('[[policies]]\nretain_for = "1h"\n')
    host = own_host()
    with ExitStack() as running:
        lookupd = running.enter_context(NsqlookupdProcess(installed_nsqlookupd()))
        options = [f"--config={config}", "--durability=os", f"--broadcast-address={host}"]
        options += [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        listen = [f"--tcp-address={host}:0", f"--http-address={host}:0"]
        started = []
        for number in range(2):
            folder = tmp_path / f"data{number}"
            folder.mkdir()
            nsqd = running.enter_context(NsqdProcess(installed_nsqd(), folder, options=[*options, *listen]))
            bodies = b"\n".join(b"nsqd %d body %d" % (number, each) for each in range(EACH))
            assert nsqd.asks("POST", "/mpub?topic=t", bodies).status == 200
            started.append(nsqd)
        deadline = time.monotonic() + 30
        while len(lookupd.asks("GET", "/lookup?topic=t").json().get("producers", ())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield (
            started,
            {
                "mode": "log",
                "subscribe": "t",
                "lookupdHttpAddresses": lookupd.http_address,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "8000",
                "partitionsPerNsqd": "2",
            },
        )


def check(outcome: Outcome, folder: Path) -> None:
    check_repeats(folder)
    assert (outcome.lost, outcome.twice) == (0, 0)


@pytest.mark.parametrize("point", [YIELDING, YIELDED])
def test_a_task_is_killed(nsqds, tmp_path: Path, tell: Tell, point):
    _, options = nsqds
    with Program("local[2,4]", tmp_path) as program:
        program.begin("copy_log", options | {"dieAt": f"{point}:{TIMES}"}, tmp_path)
        outcome = program.outcome(2 * EACH)
    kills = len(deaths(tmp_path / "deaths"))
    tell(Kills(f"`mode=log`: a task's worker, {point}", kills, outcome))
    assert kills >= TIMES
    check(outcome, tmp_path)


@pytest.mark.parametrize(
    ("work", "victim"),
    [*(("copy_log", victim) for victim in VICTIMS), *(("fill_lake", victim) for victim in list(VICTIMS)[:2])],
)
def test_a_restarted_query_continues(nsqds, tmp_path: Path, tell: Tell, work, victim):
    _, options = nsqds
    for _ in range(TIMES):
        with Program("local[2,4]", tmp_path) as program:
            program.begin(work, options, tmp_path)
            await_another("*", program, tmp_path, "yields/*")
            kill(VICTIMS[victim](program))
            wait_until(lambda: not program.is_running())
    with Program("local[2,4]", tmp_path) as program:
        program.begin(work, options, tmp_path)
        outcome = program.outcome(2 * EACH)
    tell(Kills(f"`{work}`, `mode=log`: {victim}", TIMES, outcome))
    check(outcome, tmp_path)


def test_executors_are_killed(nsqds, tmp_path: Path, tell: Tell):
    _, options = nsqds
    with Program(CLUSTER, tmp_path) as program:
        program.begin("copy_log", options, tmp_path)
        for _ in range(TIMES):
            await_another("*", program, tmp_path, "yields/*")
            kill(program.under_its_jvm("CoarseGrainedExecutorBackend")[0])
        outcome = program.outcome(2 * EACH)
    tell(Kills(f"`mode=log`: an executor's JVM, in `{CLUSTER}`", TIMES, outcome))
    check(outcome, tmp_path)


def test_nsqd_is_killed_and_started_again(nsqds, tmp_path: Path, tell: Tell):
    (first, second), options = nsqds
    with Program("local[2,4]", tmp_path) as program:
        program.begin("copy_log", options, tmp_path)
        for victim in (first, second, first):
            await_another("*", program, tmp_path, "yields/*")
            victim.kill()
            time.sleep(2.8)  # for so long it is away
            victim.start()
        outcome = program.outcome(2 * EACH)
    tell(Kills("`mode=log`: an nsqd, `--durability=os`, and started again after 2.8 s", 3, outcome))
    check(outcome, tmp_path)


def test_nsqd_is_suspended(nsqds, tmp_path: Path, tell: Tell):
    victims, options = nsqds
    with Program("local[2,4]", tmp_path) as program:
        program.begin("copy_log", options, tmp_path)
        for victim in victims:
            await_another("*", program, tmp_path, "yields/*")
            victim.send_signal(signal.SIGSTOP)
            try:
                time.sleep(6)  # longer than an answer may take
            finally:
                victim.send_signal(signal.SIGCONT)
        outcome = program.outcome(2 * EACH)
    tell(Kills("`mode=log`: an nsqd, suspended for 6 s (SIGSTOP)", 2, outcome))
    check(outcome, tmp_path)
