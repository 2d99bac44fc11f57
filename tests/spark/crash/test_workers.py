"""The worker of a task is killed at every point of its way, by itself: what arrives is everything, once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_nsq.drain import SPOOLED
from tests.spark.conftest import Publish
from tests.spark.crash.conftest import Tell
from tests.spark.crash.death import deaths
from tests.spark.crash.dying_source import POINTS, YIELDING
from tests.spark.crash.handling import HANDLER
from tests.spark.crash.running import Program, check_repeats
from tests.spark.crash.tables import Kills

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

MESSAGES = 20_000
KILLS = 4
TASK = 2_000
"""Messages in one."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program("local[2,4]", tmp_path_factory.mktemp("program")) as running:
        yield running


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_nothing_is_lost_and_nothing_comes_twice(
    program: Program, options: dict[str, str], publish: Publish, tmp_path: Path, tell: Tell, point: str
):
    publish(MESSAGES)
    program.begin("copy", options | {"dieAt": f"{point}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    kills = len(deaths(tmp_path / "deaths"))
    tell(Kills(f"a task's worker, {point}", kills, outcome))
    assert kills >= KILLS
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert check_repeats(tmp_path) >= (KILLS if point == YIELDING else 0)


def test_without_suspects_what_was_in_flight_comes_twice_and_no_more(
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


def test_a_handler_that_is_killed_is_called_again_with_what_its_task_had(
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
