"""Processes of Spark and NSQ are killed in the middle of a stream, several times: what arrives is everything, once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.spark.conftest import Publish
from tests.spark.crash.running import Program, kill, report, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MESSAGES = 20_000
# In the middle of a task, and when one has just ended.
MOMENTS = ("*.spool", "SEALED", "*.spool")


def await_another(name: str, program: Program, folder: Path) -> None:
    """Until a file of this name is in the spool that was not there."""

    def found() -> set[Path]:
        return set(folder.glob(f"spool/*/*/*/{name}"))

    before = found()
    wait_until(lambda: found() - before or not program.is_running())
    assert program.is_running(), program.what_it_said()


VICTIMS: dict[str, Callable[[Program], int]] = {
    "driver JVM": lambda program: program.jvm,
    "the user's program": lambda program: program.pid,
    "source runner": lambda program: program.under_its_jvm("python_streaming_source_runner")[0],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_query_that_is_started_again_goes_on_where_it_was(
    options: dict[str, str], publish: Publish, tmp_path: Path, victim: str
):
    publish(MESSAGES)
    for moment in MOMENTS:
        with Program("local[2,4]", tmp_path) as program:
            program.copy(options, tmp_path)
            await_another(moment, program, tmp_path)
            kill(VICTIMS[victim](program))
            wait_until(lambda: not program.is_running())
    with Program("local[2,4]", tmp_path) as program:
        program.copy(options, tmp_path)
        outcome = program.outcome(MESSAGES)
    report(victim, len(MOMENTS), outcome, tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)


def test_executors_are_killed_and_the_query_goes_on(options: dict[str, str], publish: Publish, tmp_path: Path):
    publish(MESSAGES)
    with Program("local-cluster[2,1,1024]", tmp_path) as program:
        program.copy(options, tmp_path)
        for moment in MOMENTS:
            await_another(moment, program, tmp_path)
            kill(program.under_its_jvm("CoarseGrainedExecutorBackend")[0])
        outcome = program.outcome(MESSAGES)
    report("executor JVM", len(MOMENTS), outcome, tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)


def test_nsqd_is_killed_and_started_again_and_the_query_goes_on(options: dict[str, str], topic: str, tmp_path: Path):
    host = own_host()
    listen = [f"--tcp-address={host}:0", f"--http-address={host}:0", "--durability=os"]
    (tmp_path / "data").mkdir()
    # Ours, always: Go's nsqd does not promise to survive it.
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=listen) as own:
        own.create_channel(topic, "c")
        bodies = b"\n".join(b"body %d" % number for number in range(MESSAGES))
        assert own.asks("POST", f"/mpub?topic={topic}", bodies).status == 200
        addresses = {"nsqdTcpAddresses": own.tcp_address, "nsqdHttpAddresses": own.http_address}
        with Program("local[2,4]", tmp_path) as program:
            program.copy(options | addresses, tmp_path)
            for _ in range(3):
                await_another("*.spool", program, tmp_path)
                own.kill()
                own.start()
            outcome = program.outcome(MESSAGES)
    report("nsqd", 3, outcome, tmp_path)
    assert (outcome.lost, outcome.twice) == (0, 0)
