"""Processes of Spark and NSQ are killed repeatedly during a stream, which loses and repeats no message."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq.staging import NOTED, SENT
from tests.spark.conftest import Publish
from tests.spark.crash.conftest import NSQD, Tell
from tests.spark.crash.running import Kills, Program, await_another, check_repeats, kill, wait_until
from tests.spark.crash.works import COMMAND, EXECUTOR, deaths

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MESSAGES = 20_000
TASK = 2_000
"""Messages in a task."""
# During a task, and when a task has just ended.
MOMENTS = ("*.spool", "SEALED", "*.spool")
CLUSTER = "local-cluster[2,1,1024]"

VICTIMS: dict[str, Callable[[Program], int]] = {
    "the driver's JVM": lambda program: program.jvm,
    "the program that started it": lambda program: program.pid,
    "the process that plans batches": lambda program: program.under_its_jvm("python_streaming_source_runner")[0],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_restarted_query_continues(options, publish, tmp_path, tell, victim):
    publish(MESSAGES)
    for moment in MOMENTS:
        with Program("local[2,4]", tmp_path) as program:
            program.begin("copy", options, tmp_path)
            await_another(moment, program, tmp_path)
            kill(VICTIMS[victim](program))
            wait_until(lambda: not program.is_running())
    with Program("local[2,4]", tmp_path) as program:
        program.begin("copy", options, tmp_path)
        outcome = program.outcome(MESSAGES)
    tell(Kills(victim, len(MOMENTS), outcome))
    check_repeats(tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)


@pytest.mark.parametrize(("point", "twice"), [(SENT, COMMAND), (NOTED, 0)])
def test_a_driver_killed_while_publishing_staged_files_repeats_at_most_one_command(
    options: dict[str, str], nsqd: NsqdProcess, topic: str, publish: Publish, tmp_path: Path, tell: Tell, point, twice
):
    times = 2
    publish(MESSAGES)
    nsqd.create_channel(f"{topic}.copy", "c")
    dying = options | {"dieAt": f"{point}:{times}"}
    for _ in range(times):
        with Program("local[2,4]", tmp_path) as program:
            program.begin("republish", dying, tmp_path)
            wait_until(lambda: not program.is_running())
    assert len(deaths(tmp_path / "deaths")) == times
    with Program("local[2,4]", tmp_path) as program:
        program.begin("republish", dying, tmp_path)
        outcome = program.outcome(MESSAGES)
    tell(Kills(f"the driver's JVM, `publishMode=staged`, an MPUB of {COMMAND} {point}", times, outcome))
    assert (outcome.lost, outcome.twice) == (0, times * twice)


def test_a_query_survives_kills_of_executors(options, publish, tmp_path, tell):
    publish(MESSAGES)
    with Program(CLUSTER, tmp_path) as program:
        program.begin("copy", options, tmp_path)
        for moment in MOMENTS:
            await_another(moment, program, tmp_path)
            kill(program.under_its_jvm("CoarseGrainedExecutorBackend")[0])
        outcome = program.outcome(MESSAGES)
    tell(Kills(f"an executor's JVM, in `{CLUSTER}`", len(MOMENTS), outcome))
    check_repeats(tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)


def test_kills_of_executors_leave_no_message_unhandled(options, publish, tmp_path, tell):
    publish(MESSAGES)
    times = 3
    with Program(CLUSTER, tmp_path) as program:
        program.begin("handle", options | {"dieAt": f"{EXECUTOR}:{times}"}, tmp_path)
        outcome = program.outcome(MESSAGES)
    kills = len(deaths(tmp_path / "deaths"))
    tell(Kills("an executor's JVM, in a handler of `run_reader` (twice: finished again)", kills, outcome))
    assert kills >= times
    assert outcome.lost == 0
    assert 0 < outcome.twice <= kills * TASK


def test_a_query_survives_kills_of_nsqd(options, topic, tmp_path, tell):
    is_ours = installed_nsqd() == NSQD
    # Without durability at nsqd, no message may be left after the first kill.
    times = 3 if is_ours else 1
    host = own_host()
    listen = [f"--tcp-address={host}:0", f"--http-address={host}:0", *["--durability=os"] * is_ours]
    (tmp_path / "data").mkdir()
    with NsqdProcess(NSQD, tmp_path / "data", options=listen) as own:
        own.create_channel(topic, "c")
        bodies = b"\n".join(b"body %d" % number for number in range(MESSAGES))
        assert own.asks("POST", f"/mpub?topic={topic}", bodies).status == 200
        addresses = {"nsqdTcpAddresses": own.tcp_address, "nsqdHttpAddresses": own.http_address}
        with Program("local[2,4]", tmp_path) as program:
            program.begin("copy", options | addresses, tmp_path)
            for _ in range(times):
                await_another("*.spool", program, tmp_path)
                own.kill()
                own.start()
            outcome = program.outcome(MESSAGES)
    tell(Kills("nsqd" + ", `--durability=os`" * is_ours + ", and started again", times, outcome))
    check_repeats(tmp_path)
    assert outcome.twice == 0
    # Go's nsqd keeps the rest in memory only.
    assert outcome.lost == 0 or not is_ours
