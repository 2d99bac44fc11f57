"""The worker of a task is killed at every point of its way, by itself: what arrives is everything, once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_nsq.drain import SPOOLED
from tests.spark.conftest import Publish
from tests.spark.crash.dying_source import POINTS, YIELDING
from tests.spark.crash.running import Program, report, said_again

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MESSAGES = 20_000
KILLS = 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program("local[2,4]", tmp_path_factory.mktemp("program")) as running:
        yield running


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_nothing_is_lost_and_nothing_comes_twice(
    program: Program, options: dict[str, str], publish: Publish, tmp_path: Path, point: str
):
    publish(MESSAGES)
    program.copy(options | {"dieAt": f"{point}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    kills = len(os.listdir(tmp_path / "deaths"))
    report(f"worker, {point}", kills, outcome, tmp_path)
    assert kills >= KILLS
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert said_again(tmp_path) >= (KILLS if point == YIELDING else 0)


def test_without_suspects_what_was_not_finished_comes_twice(
    program: Program, options: dict[str, str], publish: Publish, tmp_path: Path
):
    publish(MESSAGES)
    program.copy(options | {"suppressRedelivered": "false", "dieAt": f"{SPOOLED}:{KILLS}"}, tmp_path)
    outcome = program.outcome(MESSAGES)
    report(f"worker, {SPOOLED}, suppressRedelivered=false", len(os.listdir(tmp_path / "deaths")), outcome, tmp_path)
    assert outcome.lost == 0
    assert outcome.twice > 0
