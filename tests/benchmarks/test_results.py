"""Results: ratios, limits, floors and aims, the journal of runs, and CPU time of process trees."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.columns import LIMITS, limit
from benchmarks.compare import split_by_descriptors
from benchmarks.floors import BEGIN, END, headline_rows, long_rows, put_between_marks, short_rows, standings, words_of
from benchmarks.journal import Journal
from benchmarks.measure import Effort, Figures, Rounds, RunFailed
from benchmarks.process_tree import ENDED, cpu_by_program
from benchmarks.results import Circumstances, render, standings_of, told_part
from benchmarks.scenarios import Aim, Kind, Scenario
from benchmarks.subjects import SUBJECTS, Server

OURS, PEER = Server("ours", "nsqd", ours=True), Server("theirs", "nsqd")
EFFORT = Effort(seconds=1, rounds=2, seed=1)


def figures(
    *, messages: float = 1000, cpu: float = 0.5, load: float = 0.1, others: float = 0.0, p99: float = 1
) -> Figures:
    return Figures(messages, 1.0, cpu, load, others, rss_bytes=2**20, p99=p99)


def rounds(*each: Figures) -> Rounds:
    return Rounds(each)


def scenario(name: str = "pub", aim: Aim | None = None) -> Scenario:
    return Scenario(name, "what is done", (), group="Publishing", aim=aim)


def test_a_ratio_is_computed_from_alternating_rounds() -> None:
    # Both are slower in the second round; the ratio of medians would be 1.5.
    ours = rounds(figures(messages=200), figures(messages=20), figures(messages=150))
    theirs = rounds(figures(messages=100), figures(messages=10), figures(messages=300))
    assert ours.ratio("rate", theirs) == 2.0


def test_the_ratio_is_inverted_if_less_is_better() -> None:
    assert rounds(figures(cpu=1)).ratio("cpu_us", rounds(figures(cpu=3)), less_is_better=True) == 3.0


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (figures(cpu=0.95, load=0.95), "GENERATOR"),
        (figures(cpu=0.95), "server"),
        (figures(cpu=0.5, others=0.5), "(disturbed)"),
        (figures(cpu=0.5), "round trips"),
        (figures(cpu=200.0), "machine"),
    ],
)
def test_the_limit_of_a_rate_is_named(run: Figures, said: str) -> None:
    assert limit(rounds(run)) == said
    assert said in LIMITS


@pytest.mark.parametrize(
    ("messages", "cpu", "reached"), [(2500, 0.2, "aim"), (2500, 0.8, "floor"), (1100, 0.1, "**short**")]
)
def test_an_aim_is_reached_by_all_of_its_figures(messages: float, cpu: float, reached: str) -> None:
    asked = scenario(aim=Aim("PUB", 1.2, 2.5, "a reason"))
    (standing,) = standings({asked: [rounds(figures(messages=messages, cpu=cpu)), rounds(figures())]})
    assert standing.reached == reached
    assert standing.why == ("" if reached == "aim" else "a reason")


@pytest.mark.parametrize(
    ("messages", "cpu", "reached"),
    [(1000, 0.5, "**short**"), (1000, 0.4, "floor"), (1500, 0.4, "floor"), (1500, 0.375, "aim")],
)
def test_cpu_time_may_have_a_floor_of_its_own(messages: float, cpu: float, reached: str) -> None:
    asked = scenario(aim=Aim("PUB", 1.0, 1.5, cpu=(1.2, 2.0)))
    measured = rounds(figures(messages=messages, cpu=cpu))
    (standing,) = standings({asked: [measured, rounds(figures())]})
    assert standing.reached == reached
    assert long_rows({"ours": [standing]})[1][2:4] == ["1, CPU 1.2", "1.5, CPU 2"]


@pytest.mark.parametrize(("name", "reached"), [("ours", "floor"), ("ours compiled", "**short**")])
def test_an_interpreted_nsqd_has_to_reach_a_part(name: str, reached: str) -> None:
    servers = [Server(name, "", ours=True), PEER]
    rate = scenario("rate", aim=Aim("PUB", 1.0, 2.0, interpreted=0.75))
    p99 = scenario("p99", aim=Aim("p99", 0.6, 0.3, figures=("p99",), less_is_better=True, interpreted=0.75))
    peer = rounds(figures())
    found = {rate: [rounds(figures(messages=800)), peer], p99: [rounds(figures(p99=0.7)), peer]}
    assert [each.reached for each in standings_of(servers, found)[name]] == [reached, reached]


def test_the_page_names_the_loads_of_which_a_part_is_enough() -> None:
    part, whole = Aim("PUB", 1.0, 2.0, interpreted=0.75), Aim("MPUB", 1.0, 2.0)
    assert told_part([whole]) == ""
    assert told_part([part, part]) == " An interpreted nsqd has to reach 0.75 of both."
    assert told_part([part, whole]) == " An interpreted nsqd has to reach 0.75 of both, of these loads: PUB."


def test_on_a_busy_machine_only_cpu_time_is_judged() -> None:
    asked = scenario(aim=Aim("PUB", 1.2, 2.5))
    (standing,) = standings({asked: [rounds(figures(cpu=0.1, others=1.0)), rounds(figures(others=1.0))]})
    assert (standing.verdict, standing.measured) == ("aim, by CPU", "(msg/s 1.00), CPU 5.00")
    asked = scenario(aim=Aim("p99", 0.7, 0.2, figures=("p99",), less_is_better=True))
    (standing,) = standings({asked: [rounds(figures(p99=5, others=1.0)), rounds(figures())]})
    assert standing.reached == "(disturbed)"


@pytest.mark.parametrize(("p99", "reached"), [(0.2, "aim"), (0.7, "floor"), (0.8, "**short**")])
def test_if_less_is_better_an_aim_is_a_fraction_of_gos_figure(p99: float, reached: str) -> None:
    asked = scenario(aim=Aim("p99", 0.7, 0.2, figures=("p99",), less_is_better=True))
    (standing,) = standings({asked: [rounds(figures(p99=p99)), rounds(figures(p99=1))]})
    assert (standing.reached, standing.measured) == (reached, f"p99 {p99:.2f}")


def test_the_short_table_shows_the_worst_scenario_of_each_aim() -> None:
    good, bad = scenario("good", Aim("PUB", 1, 2)), scenario("bad", Aim("PUB", 1, 2))
    peer = rounds(figures())
    found = standings(
        {good: [rounds(figures(messages=3000, cpu=0.1)), peer], bad: [rounds(figures(messages=900)), peer]}
    )
    assert [row[1] for row in long_rows({"ours": found})[1:]] == ["`good`", "`bad`"]
    (row,) = short_rows({"ours": found})[1:]
    assert row[0] == "PUB"
    assert "`bad`" in row[3]
    assert row[4] == "**short**"


def test_all_our_servers_are_compared_with_the_same_peer() -> None:
    asked = scenario("asked", Aim("PUB", 1, 2, "a reason"))
    slow, peer, quick = (rounds(figures(messages=messages, cpu=1000 / messages)) for messages in (900, 1000, 3000))
    servers = [Server("slow", "", True), Server("peer", ""), Server("quick", "", True)]
    found = standings_of(servers, {asked: [slow, peer, quick]})
    assert {name: standing.reached for name, (standing,) in found.items()} == {"slow": "**short**", "quick": "aim"}
    head, row = long_rows(found)
    assert head[4:] == ["slow", "reached", "quick", "reached", "why not the aim"]
    assert [row[5], *row[7:]] == ["**short**", "aim", "a reason"]
    head, row = short_rows(found)
    assert words_of([head, row]) == {0, 3, 4, 5, 6}
    assert [row[4], row[6]] == ["**short**", "aim"]
    head, row = headline_rows(found, {"PUB": "publishing", "MPUB": "not measured"})
    assert head == ["Load", "slow", "quick"]
    assert row == ["publishing", found["slow"][0].measured, found["quick"][0].measured]
    assert standings_of(servers[:1], {asked: [slow]}) == {}


def test_a_page_without_marks_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_between_marks(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("before\n")
    with pytest.raises(ValueError, match="no place for floors and aims"):
        put_between_marks(page, "new")


def test_figures_are_found_for_the_same_run_only(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    Journal(path).add(scenario(), OURS, EFFORT, 0, figures(messages=7))
    again = Journal(path)
    assert again.find(scenario(), OURS, EFFORT, 0) == figures(messages=7)
    assert again.find(scenario(), OURS, EFFORT, 1) is None
    assert again.find(scenario(), PEER, EFFORT, 0) is None
    assert again.find(scenario(), OURS, Effort(2, 2, 1), 0) is None
    assert len(again.entries) == 1


def test_another_kind_of_file_is_not_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    path.write_text('{"name": "pub"}\n')
    with pytest.raises(RunFailed, match="line 1: not the figures of a run"):
        Journal(path)


def test_a_page_shows_figures_limits_and_omitted_scenarios() -> None:
    asked, impossible = scenario("pub", Aim("PUB", 1, 2, "too few CPUs")), scenario("many")
    journal = Journal()
    of_servers = []
    for server, messages in ((OURS, 1100), (PEER, 1000)):
        run = figures(messages=messages)
        journal.add(asked, server, EFFORT, 0, run)
        of_servers.append(rounds(run))
    circumstances = Circumstances("benchmarks/run", EFFORT, journal.entries, {impossible: "too many connections"})
    page = render(SUBJECTS["nsqd"], circumstances, [OURS, PEER], ["v1", "v2"], {asked: of_servers})
    for said in (
        "| PUB",
        "too few CPUs",
        "**1.10**",
        "## Publishing",
        "**round trips**",
        "`many`: too many connections.",
    ):
        assert said in page


def test_a_page_of_several_commits_names_that_of_each_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    results = {}
    for name, commit in (("pub", "first"), ("mpub", "second")):
        monkeypatch.setattr("benchmarks.machine.commit", lambda commit=commit: commit)
        journal.add(scenario(name), OURS, EFFORT, 0, figures())
        results[scenario(name)] = [rounds(figures())]
    page = render(
        SUBJECTS["nsqd"], Circumstances("benchmarks/run", EFFORT, journal.entries, {}), [OURS], ["v1"], results
    )
    assert "commit first, second\n" in page
    assert "`mpub`: what is done (commit second)." in page


def test_a_scenario_that_needs_too_many_descriptors_is_left_out_with_a_reason() -> None:
    few, many = scenario("few"), Scenario("many", "", (), Kind.IDLE, connections=10**12)
    fit, left_out = split_by_descriptors([few, many])
    assert fit == [few]
    assert "1,000,000,000,000 connections" in left_out[many]


CHILD = "import time\nwhile time.process_time() < 0.5: pass"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
print(flush=True)
sys.stdin.read()
"""


def test_ended_processes_are_counted_apart_from_their_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent = cpu_by_program(process.pid)
        process.communicate()
    ended = spent.pop(ENDED)
    (own,) = spent.values()
    assert ended > 0.45
    assert own < ended
