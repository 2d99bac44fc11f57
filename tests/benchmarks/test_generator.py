"""The generator reports no figures for an incorrect nsqd."""

from pathlib import Path

import pytest

from benchmarks.measure import Effort, RunFailed, measure
from benchmarks.scenarios import Kind, Scenario, load_of
from benchmarks.subjects import SUBJECTS
from tests.benchmarks.conftest import NsqdThat


@pytest.mark.parametrize(
    ("bodies", "defer", "load", "said"),
    [
        ("bodies", "defer / 2", load_of(publish="dpub", rate=500, consumers=1, rdy=2500), "before its time"),
        ("[*bodies, bodies[0]]", "defer", load_of(publish="pub", consumers=1, rdy=100), "came twice"),
        ("[*bodies, bodies[0]]", "defer", load_of(publish="pub", thread="true"), "the server says"),
    ],
    ids=["early", "twice", "twice by a thread"],
)
def test_an_incorrect_nsqd_has_no_figures(
    bodies: str, defer: str, load: tuple[str, ...], said: str, generator: Path, nsqd_that: NsqdThat
) -> None:
    scenario = Scenario("wrong", "", (*load, *load_of(warmup=0.05, most=200)), Kind.LATENCY)
    with pytest.raises(RunFailed, match=said):
        measure(
            generator,
            SUBJECTS["nsqd"],
            nsqd_that(bodies=bodies, defer=defer),
            scenario,
            Effort(seconds=0.4, rounds=1, seed=1),
            0,
        )
