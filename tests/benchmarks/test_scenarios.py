"""Every scenario runs: the generator accepts its flags, and our nsqd handles all messages correctly. An incorrect nsqd
has no figures.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.measure import Effort, RunFailed, load, measure
from benchmarks.nsqd_aims import AIMS
from benchmarks.nsqd_scenarios import SCENARIOS
from benchmarks.scenarios import Kind, Scenario, load_of
from benchmarks.subjects import SUBJECTS
from benchmarks.traffic_scenarios import TRAFFIC_SCENARIOS
from nsq_conformance.daemon_process import DaemonProcess
from tests.benchmarks.conftest import OURS, NsqdThat

NSQD = SUBJECTS["nsqd"]
# Of repeated flags, the last one counts.
BRIEF = load_of(warmup=0.05, seconds=0.2, most=400, pause=0)


def briefly(scenario: Scenario) -> tuple[str, ...]:
    fewer = {"topics": "-topics=5", "idle": "-idle=20", "publishers": "-publishers=20", "backlog": "-backlog=200"}
    large = {flag.partition("=")[0][1:] for flag in scenario.load if int_of(flag) > 20}
    return (*scenario.load, *BRIEF, *(fewer[name] for name in fewer if name in large))


def int_of(flag: str) -> int:
    value = flag.partition("=")[2]
    return int(value) if value.isdigit() else 0


@pytest.mark.parametrize("scenario", [*SCENARIOS, *TRAFFIC_SCENARIOS], ids=lambda scenario: scenario.name)
def test_a_scenario_runs(scenario: Scenario, generator: Path, nsqd_for: Callable[[Scenario], DaemonProcess]) -> None:
    figures = load(generator, NSQD, nsqd_for(scenario), briefly(scenario), scenario.name)
    if scenario.kind is Kind.IDLE:
        assert figures.idle_connections == 20
    else:
        assert figures.messages > 0
    assert (figures.p50 > 0) == (scenario.kind is Kind.LATENCY)
    assert (figures.capacity > 0) == any(flag.startswith("-capacity=") for flag in scenario.load)


def test_names_are_unique_and_a_group_has_one_kind() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    kinds = {(scenario.group, scenario.kind) for scenario in SCENARIOS}
    assert len(kinds) == len(dict(kinds))


def test_every_aim_has_its_scenario() -> None:
    assert {scenario.name for scenario in SCENARIOS if scenario.aim is not None} == set(AIMS)


def test_go_nsq_has_the_floors_of_the_same_load() -> None:
    aims = {scenario.name: scenario.aim for scenario in TRAFFIC_SCENARIOS if scenario.aim is not None}
    assert {name for name in aims if not name.endswith("-go-nsq")} >= {"deliver-fin-64k", "connections-tls"}
    assert {name for name in aims if name.endswith("-go-nsq")} >= {"mpub-200x200-go-nsq", "latency-1k-go-nsq"}
    for name, aim in aims.items():
        assert aims.get(name.removesuffix("-go-nsq"), aim) == aim


def test_a_start_is_measured_with_the_data_of_a_stopped_nsqd(generator: Path) -> None:
    scenario = Scenario("start", "", load_of(fill="true", topics=5, most=500), Kind.START)
    figures = measure(generator, NSQD, OURS, scenario, Effort(seconds=0.1, rounds=1, seed=1), 0)
    assert figures.messages == 500
    assert figures.server_cpu > 0


def test_an_unknown_load_is_refused(generator: Path, nsqd_for: Callable[[Scenario], DaemonProcess]) -> None:
    with pytest.raises(RunFailed, match="dpub or -requeue goes with -rate"):
        load(generator, NSQD, nsqd_for(SCENARIOS[0]), load_of(publish="dpub"), "wrong")


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
