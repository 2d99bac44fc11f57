"""Workers of tasks are killed at every point of a task, and no message is lost or repeated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_nsq.drain import SPOOLED
from tests.spark.conftest import Publish
from tests.spark.crash.conftest import Tell
from tests.spark.crash.dying_source import POINTS, YIELDING
from tests.spark.crash.running import Kills, Program, check_repeats
from tests.spark.crash.works import HANDLER, deaths

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

MESSAGES = 20_000
KILLS = 4
TASK = 2_000
"""Messages in a task."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program("local[2,4]", tmp_path_factory.mktemp("program")) as running:
        yield running


@pytest.mark.parametrize("point", POINTS)
def test_a_task_killed_at_any_point_loses_and_repeats_nothing(program, options, publish, tmp_path, tell, point):
    publish(MESSAGES)
    program.begin("copy", options | {"dieAt": f"{point}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    kills = len(deaths(tmp_path / "deaths"))
    tell(Kills(f"a task's worker, {point}", kills, outcome))
    assert kills >= KILLS
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert check_repeats(tmp_path) >= (KILLS if point == YIELDING else 0)


def test_without_suppress_redelivered_at_most_messages_in_flight_are_read_twice(
    program: Program, options: dict[str, str], publish: Publish, tmp_path: Path, tell: Tell
):
    publish(MESSAGES)
    program.begin("copy", options | {"suppressRedelivered": "false", "dieAt": f"{SPOOLED}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    kills = len(deaths(tmp_path / "deaths"))
    in_flight = int(options["maxInFlight"])
    tell(Kills(f"a task's worker, {SPOOLED}, `suppressRedelivered=false`, `maxInFlight={in_flight}`", kills, outcome))
    assert outcome.lost == 0
    assert 0 < outcome.twice <= kills * in_flight


def test_after_a_kill_a_handler_is_called_again_with_the_messages_of_its_task(
    program: Program, options: dict[str, str], publish: Publish, tmp_path: Path, tell: Tell
):
    publish(MESSAGES)
    program.begin("handle", options | {"dieAt": f"{HANDLER}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    kills = len(deaths(tmp_path / "deaths"))
    tell(Kills("a task's worker, in a handler of `run_reader` (twice: finished again)", kills, outcome))
    assert kills >= KILLS
    assert outcome.lost == 0
    assert 0 < outcome.twice <= kills * TASK
