"""The quiet client beside abuse: every kind of abuse runs, and an incorrect run has no figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bystander_scenarios import BYSTANDER_SCENARIOS
from benchmarks.floors import AIM, FLOOR, SHORT, long_rows, standings
from benchmarks.measure import Effort, Figures, Rounds, RunFailed, load, measure
from benchmarks.scenarios import Aim, Kind, Scenario, load_of
from benchmarks.subjects import SUBJECTS
from nsq_conformance.daemon_process import DaemonProcess
from tests.benchmarks.conftest import NsqdThat

BYSTANDER = SUBJECTS["bystander"]
# Of repeated flags, the last one counts.
BRIEF = load_of(count=400, within="500ms", pause="0s", seconds=0.2)

HOLD = 'end = time.monotonic() + 0.2 * (str(self.name) == "abuse")\n    while time.monotonic() < end: pass'


@pytest.mark.parametrize("scenario", BYSTANDER_SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_quiet_client_is_measured_beside_each_kind_of_abuse(
    scenario: Scenario, generator: Path, nsqd_for: Callable[[Scenario], DaemonProcess]
) -> None:
    figures = load(generator, BYSTANDER, nsqd_for(scenario), (*scenario.load, *BRIEF), scenario.name)
    assert figures.messages > 100  # one every 5 ms, for more than a second
    assert 0 < figures.p50 <= figures.p99 <= figures.longest
    assert (figures.abuses > 0) == (scenario.name != "bystander-alone")
    assert (figures.abuse_p99 > 0) == ("deferred" in scenario.name)


def test_all_deferred_messages_count_as_the_abuse(
    generator: Path, nsqd_for: Callable[[Scenario], DaemonProcess]
) -> None:
    scenario = next(each for each in BYSTANDER_SCENARIOS if each.name == "bystander-deferred-100k")
    figures = load(generator, BYSTANDER, nsqd_for(scenario), (*scenario.load, *BRIEF), scenario.name)
    assert (figures.abuses, figures.abuse_early) == (400, 0)


def test_messages_that_come_before_their_time_are_counted(generator: Path, nsqd_that: NsqdThat) -> None:
    scenario = Scenario("early", "", (*load_of(abuse="deferred"), *BRIEF, *load_of(within="60s")), Kind.BYSTANDER)
    early = nsqd_that(defer="0.0")
    figures = measure(generator, BYSTANDER, early, scenario, Effort(seconds=0.2, rounds=1, seed=1), 0)
    assert figures.abuses == 400
    assert 300 < figures.abuse_early <= 400  # on a busy machine some come after it


def test_a_blocked_event_loop_shows_in_the_latency_of_the_quiet_client(generator: Path, nsqd_that: NsqdThat) -> None:
    scenario = Scenario("busy", "", (*load_of(abuse="mpub"), *BRIEF), Kind.BYSTANDER)
    figures = measure(generator, BYSTANDER, nsqd_that(HOLD), scenario, Effort(seconds=0.2, rounds=1, seed=1), 0)
    assert figures.longest_ms > 150
    # Messages due meanwhile were sent and waited too: more than one in a hundred.
    assert figures.p99 > 100_000


def test_refused_abuse_has_no_figures(generator: Path, nsqd_that: NsqdThat) -> None:
    scenario = Scenario("wrong", "", (*load_of(abuse="mpub"), *BRIEF), Kind.BYSTANDER)
    broken = nsqd_that(bodies="bodies[:1]")
    with pytest.raises(RunFailed, match="wrong: mpub: .* messages were answered, the server says"):
        measure(generator, BYSTANDER, broken, scenario, Effort(seconds=0.2, rounds=1, seed=1), 0)


def test_an_unknown_abuse_is_refused(generator: Path, nsqd_for: Callable[[Scenario], DaemonProcess]) -> None:
    with pytest.raises(RunFailed, match='no such abuse: "rudeness"'):
        load(generator, BYSTANDER, nsqd_for(BYSTANDER_SCENARIOS[0]), load_of(abuse="rudeness"), "wrong")


def test_every_abuse_has_gos_p99_as_floor_and_ten_milliseconds_as_aim() -> None:
    asked = [scenario.aim for scenario in BYSTANDER_SCENARIOS if scenario.name != "bystander-alone"]
    assert all(aim is not None and (aim.figures, aim.floor, aim.longest_ms) == (("p99",), 1.0, 10.0) for aim in asked)
    assert BYSTANDER_SCENARIOS[0].aim is None
    assert {scenario.kind for scenario in BYSTANDER_SCENARIOS} == {Kind.BYSTANDER}
    names = {scenario.name for subject in SUBJECTS.values() for scenario in subject.scenarios}
    assert len(names) == sum(len(subject.scenarios) for subject in SUBJECTS.values())


@pytest.mark.parametrize(
    ("p99", "longest", "reached"),
    [(900.0, 9_000.0, AIM), (900.0, 11_000.0, FLOOR), (1_100.0, 9_000.0, SHORT), (1_100.0, 11_000.0, SHORT)],
)
def test_the_aim_also_wants_a_short_longest_latency(p99: float, longest: float, reached: str) -> None:
    asked = Scenario("asked", "", (), aim=Aim("p99", 1, 1, figures=("p99",), less_is_better=True, longest_ms=10))
    plain = Figures(1000, 1.0, 0.5, 0.1, 0.0, rss_bytes=2**20)
    ours = Rounds((replace(plain, p99=p99, longest=longest),))
    peer = Rounds((replace(plain, p99=1_000.0, longest=90_000.0),))
    found = standings({asked: [ours, peer]})
    assert [standing.reached for standing in found] == [reached]
    (row,) = long_rows({"ours": found})[1:]
    assert row[2:4] == ["1", "1, longest 10 ms"]
    assert row[4] == f"p99 {p99 / 1000:.2f}, longest {longest / 1000:.1f} ms"
