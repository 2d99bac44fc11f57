"""Floors and aims: what is asked of each scenario beside Go's nsqd, where ours stands, and why where the aim is not
reached. At length for the result, and short for README.md between two marks; both are written by a run, not by hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Rounds
from benchmarks.scenarios import Aim, Scenario

BEGIN, END = "<!-- floors and aims: written by benchmarks/run -->", "<!-- end of floors and aims -->"

_CALLED = {"rate": "msg/s", "cpu_us": "CPU", "p99": "p99", "idle_connection_bytes": "RSS"}
_COSTS = {"cpu_us", "p99", "idle_connection_bytes"}


@dataclass(frozen=True, slots=True)
class Standing:
    """`ratios` are those of the aim's figures, in the aim's own direction."""

    scenario: Scenario
    aim: Aim
    ratios: tuple[float, ...]

    @property
    def reached(self) -> str:
        """By all of its figures."""
        worst = max(self.ratios) if self.aim.less_is_better else min(self.ratios)
        for what, bound in (("aim", self.aim.aim), ("floor", self.aim.floor)):
            if (worst <= bound) if self.aim.less_is_better else (worst >= bound):
                return what
        return "**short**"

    @property
    def measured(self) -> str:
        return ", ".join(
            f"{_CALLED[figure]} {ratio:.2f}" for figure, ratio in zip(self.aim.figures, self.ratios, strict=True)
        )

    @property
    def why(self) -> str:
        return "" if self.reached == "aim" else self.aim.why


def standings(results: Mapping[Scenario, Sequence[Rounds]]) -> list[Standing]:
    """Of those scenarios that have an aim and were measured beside a peer, the first of them."""
    return [
        Standing(scenario, scenario.aim, tuple(_ratio(figure, scenario.aim, rounds) for figure in scenario.aim.figures))
        for scenario, rounds in results.items()
        if scenario.aim is not None and len(rounds) > 1
    ]


def _ratio(figure: str, aim: Aim, rounds: Sequence[Rounds]) -> float:
    return rounds[0].ratio(figure, rounds[1], less_is_better=figure in _COSTS and not aim.less_is_better)


def long_rows(found: Sequence[Standing]) -> list[list[str]]:
    """With the reasons; the first row is the head."""
    rows = [["asked of", "scenario", "floor", "aim", "measured", "reached", "why not the aim"]]
    for each in found:
        rows.append(
            [_row(each.aim), f"`{each.scenario.name}`", *_bounds(each.aim), each.measured, each.reached, each.why]
        )
    return rows


def short_rows(found: Sequence[Standing]) -> list[list[str]]:
    """A row for each line of what is asked, with the scenario that stands worst."""
    rows = [["asked of", "floor", "aim", "measured", "reached"]]
    order = ("**short**", "floor", "aim")
    for row in dict.fromkeys(each.aim.row for each in found):
        of_row = [each for each in found if each.aim.row == row]
        worst = min(of_row, key=lambda each: order.index(each.reached))
        measured = worst.measured if len(of_row) == 1 else f"{worst.measured} (`{worst.scenario.name}`)"
        rows.append([_row(worst.aim), *_bounds(worst.aim), measured, worst.reached])
    return rows


def _row(aim: Aim) -> str:
    return f"{aim.row} (less is better)" if aim.less_is_better else aim.row


def _bounds(aim: Aim) -> list[str]:
    return [f"{aim.floor:g}", f"{aim.aim:g}"]


def put_between_marks(page: Path, text: str) -> None:
    """Raises ValueError for a page without the marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: no place for floors and aims between {BEGIN} and {END}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
