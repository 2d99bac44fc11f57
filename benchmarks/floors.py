"""Floors and aims: the ratio to Go's nsqd that a scenario must or should reach, and the measured one.

A run writes three tables: all scenarios to the page of results, a row for each aim to docs/benchmarks.md, and a few
rows to README.md. The last two stand between two marks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Rounds
from benchmarks.scenarios import Aim, Scenario

BEGIN, END = "<!-- floors and aims: written by benchmarks/run -->", "<!-- end of floors and aims -->"

_CALLED = {"rate": "msg/s", "cpu_us": "CPU", "p99": "p99", "idle_connection_bytes": "RSS"}
_NEEDS_THE_MACHINE = {"rate", "p99"}
_DISTURBED = 0.5
"""CPUs used by other processes above which rates and latencies are not judged."""

SHORT, UNKNOWN, FLOOR, AIM = _WORST_FIRST = ("**short**", "(disturbed)", "floor", "aim")
"""Verdicts."""

_COSTS = {"cpu_us", "p99", "idle_connection_bytes"}


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of a scenario with an aim. `ratios` are those of the aim's figures, in the aim's direction.

    `part` of the floor and of the aim has to be reached. `disturbed`: other processes used the machine, and figures
    that depend on it are not judged. `longest_ms` is our longest latency.
    """

    scenario: Scenario
    aim: Aim
    ratios: Mapping[str, float]
    disturbed: bool = False
    longest_ms: float = 0.0
    part: float = 1.0

    @property
    def reached(self) -> str:
        """The worst verdict of all figures."""
        reached = [self._reached(figure) for figure in self.ratios if self._decides(figure)]
        if not reached:
            return UNKNOWN
        too_long = self.aim.longest_ms is not None and self.longest_ms > self.aim.longest_ms
        return min(*reached, FLOOR if too_long else AIM, key=_WORST_FIRST.index)

    def _reached(self, figure: str) -> str:
        ratio = self.ratios[figure]
        floor, aim = self.aim.bounds(figure)
        for what, bound in ((AIM, aim), (FLOOR, floor)):
            if (ratio <= bound / self.part) if self.aim.less_is_better else (ratio >= bound * self.part):
                return what
        return SHORT

    @property
    def measured(self) -> str:
        ratios = ", ".join(
            f"{_CALLED[figure]} {ratio:.2f}" if self._decides(figure) else f"({_CALLED[figure]} {ratio:.2f})"
            for figure, ratio in self.ratios.items()
        )
        return ratios if self.aim.longest_ms is None else f"{ratios}, longest {self.longest_ms:,.1f} ms"

    @property
    def verdict(self) -> str:
        """The verdict, with the judged figures if some are not judged."""
        by_some = self.reached != UNKNOWN and not all(map(self._decides, self.ratios))
        return f"{self.reached}, by CPU" if by_some else self.reached

    def _decides(self, figure: str) -> bool:
        return not (self.disturbed and figure in _NEEDS_THE_MACHINE)

    @property
    def why(self) -> str:
        return self.aim.why if self.reached in (FLOOR, SHORT) else ""


def standings(
    results: Mapping[Scenario, Sequence[Rounds]], ours: int = 0, *, interpreted: bool = False
) -> list[Standing]:
    """The results of scenarios that have an aim and were measured with a peer, the second server.

    `ours` is the index of the server that is compared with it, `interpreted` whether it is not compiled.
    """
    found = []
    for scenario, rounds in results.items():
        if scenario.aim is None or len(rounds) < 2:
            continue
        both = (rounds[ours], rounds[1])
        ratios = {figure: _ratio(figure, scenario.aim, *both) for figure in scenario.aim.figures}
        disturbed = any(each.cores("others") > _DISTURBED for each in both)
        part = scenario.aim.interpreted if interpreted else 1.0
        found.append(Standing(scenario, scenario.aim, ratios, disturbed, rounds[ours].median("longest_ms"), part))
    return found


def _ratio(figure: str, aim: Aim, ours: Rounds, peer: Rounds) -> float:
    return ours.ratio(figure, peer, less_is_better=figure in _COSTS and not aim.less_is_better)


def long_rows(found: Mapping[str, Sequence[Standing]]) -> list[list[str]]:
    """The table of all scenarios, with reasons. `found` has results by server name. The first row is the head."""
    rows = [["load", "scenario", "floor", "aim", *_titles(found), "why not the aim"]]
    for of_scenario in zip(*found.values(), strict=True):
        each = of_scenario[0]
        cells = [cell for standing in of_scenario for cell in (standing.measured, standing.verdict)]
        why = next((standing.why for standing in of_scenario if standing.why), "")
        rows.append([_row(each.aim), f"`{each.scenario.name}`", *bounds_of(each.aim), *cells, why])
    return rows


def short_rows(found: Mapping[str, Sequence[Standing]]) -> list[list[str]]:
    """A row for each aim, with its worst scenario."""
    rows = [["load", "floor", "aim", *_titles(found)]]
    aims = {each.aim.row: each.aim for of_one in found.values() for each in of_one}
    for name, aim in aims.items():
        cells: list[str] = []
        for of_one in found.values():
            of_row = [each for each in of_one if each.aim.row == name]
            worst = _worst(of_row)
            scenario = "" if len(of_row) == 1 else f" (`{worst.scenario.name}`)"
            cells += [f"{worst.measured}{scenario}", worst.verdict]
        rows.append([_row(aim), *bounds_of(aim), *cells])
    return rows


def headline_rows(found: Mapping[str, Sequence[Standing]], headlines: Mapping[str, str]) -> list[list[str]]:
    """The measured ratios of a few aims, without bounds; `headlines` maps their rows to names."""
    rows = [["Load", *found]]
    for name, title in headlines.items():
        of_row = [[each for each in of_one if each.aim.row == name] for of_one in found.values()]
        if all(of_row):
            rows.append([title, *(_worst(each).measured for each in of_row)])
    return rows


def words_of(rows: Sequence[Sequence[str]]) -> set[int]:
    """The columns of these rows that are not numbers."""
    return set(range(len(rows[0]))) - {rows[0].index("floor"), rows[0].index("aim")}


def _titles(found: Mapping[str, Sequence[Standing]]) -> list[str]:
    return [title for name in found for title in (name if len(found) > 1 else "measured", "reached")]


def _worst(of_row: Sequence[Standing]) -> Standing:
    return min(of_row, key=lambda each: _WORST_FIRST.index(each.reached))


def _row(aim: Aim) -> str:
    return f"{aim.row} (less is better)" if aim.less_is_better else aim.row


def bounds_of(aim: Aim) -> list[str]:
    """The floor and the aim as the tables show them."""
    by_cpu = aim.cpu or (0, 0)
    both = [
        f"{bound:g}" + (f", CPU {cpu:g}" if cpu else "")
        for bound, cpu in zip((aim.floor, aim.aim), by_cpu, strict=True)
    ]
    if aim.longest_ms is not None:
        both[1] += f", longest {aim.longest_ms:g} ms"
    return both


def put_between_marks(page: Path, text: str) -> None:
    """Replace the text between the marks of a page. Raises ValueError if the page has none."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: no place for floors and aims between {BEGIN} and {END}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
