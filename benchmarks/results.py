"""Renders a result as Markdown that is also readable in a terminal: circumstances, then a table for each group."""

import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks import machine
from benchmarks.columns import COLUMNS, LIMITS, Column, limit
from benchmarks.floors import Standing, long_rows, standings, words_of
from benchmarks.journal import Entry
from benchmarks.measure import Effort, Rounds
from benchmarks.scenarios import Aim, Kind, Scenario
from benchmarks.subjects import Server, Subject

Results = Mapping[Scenario, Sequence[Rounds]]

_LIMITED = (Kind.THROUGHPUT, Kind.QUESTIONS, Kind.REGISTRATION)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How a result was made. `command` repeats it, `entries` are its runs, `left_out` has reasons by scenario."""

    command: str
    effort: Effort
    entries: Sequence[Entry]
    left_out: Mapping[Scenario, str]


def render(
    subject: Subject,
    circumstances: Circumstances,
    servers: Sequence[Server],
    versions: Sequence[str],
    results: Results,
) -> str:
    """The whole document, without a newline at its end."""
    parts = [f"# Results of {subject.name}", _preamble(subject, circumstances, servers, versions, results)]
    if found := standings_of(servers, results):
        rows = long_rows(found)
        told = _FLOORS + told_part([each.aim for each in next(iter(found.values()))])
        parts += ["## Floors and aims", textwrap.fill(told, 120), table(rows, words_of(rows))]
    for group in dict.fromkeys(scenario.group for scenario in results):
        of_group = {scenario: rounds for scenario, rounds in results.items() if scenario.group == group}
        columns = COLUMNS[next(iter(of_group)).kind]
        parts += [f"## {group}", _table(columns, servers, of_group)]
    limited = {scenario: rounds for scenario, rounds in results.items() if scenario.kind in _LIMITED}
    if limited:
        parts += ["## What limits the rate, and what that means", _limits(servers, limited)]
    parts += ["## Scenarios", _what_was_done(circumstances.entries, results)]
    if circumstances.left_out:
        lines = (f"- `{scenario.name}`: {why}." for scenario, why in circumstances.left_out.items())
        parts += ["## Scenarios that this machine cannot run", "\n".join(lines)]
    return "\n\n".join(parts)


def standings_of(servers: Sequence[Server], results: Results) -> dict[str, list[Standing]]:
    """The results of each of our servers against the peer, the second server, if there is one."""
    ours = [number for number, server in enumerate(servers) if number != 1 and (server.ours or not number)]
    found = {
        servers[number].name: standings(results, number, interpreted=" compiled" not in servers[number].name)
        for number in (ours if len(servers) > 1 else ())
    }
    return found if any(found.values()) else {}


_FLOORS = """\
Ours compared with Go's nsqd, both at default durability. A floor must be reached, an aim should be, by each of the
figures named. Above 1.00 is better than Go's. Where less is better, the figure is ours divided by Go's. Figures in
brackets are not judged, because other processes used more than half a CPU meanwhile."""


def told_part(aims: Sequence[Aim]) -> str:
    """A sentence, if an interpreted nsqd has to reach only a part of some floors."""
    loads = {aim.row: aim.interpreted for aim in aims if aim.interpreted < 1}
    if not loads:
        return ""
    everywhere = len(loads) == len({aim.row for aim in aims})
    where = "" if everywhere else f", of these loads: {'; '.join(loads)}"
    return f" An interpreted nsqd has to reach {min(loads.values()):g} of both{where}."


def _preamble(
    subject: Subject,
    circumstances: Circumstances,
    servers: Sequence[Server],
    versions: Sequence[str],
    results: Results,
) -> str:
    effort, entries = circumstances.effort, circumstances.entries
    when = sorted(entry.at for entry in entries)
    when = list(dict.fromkeys((when[0], when[-1])))
    commits = dict.fromkeys(entry.commit for entry in entries)
    loads = sorted(entry.load_average for entry in entries)
    facts = [
        f"Date: {' to '.join(when)} UTC, commit {', '.join(commits)}",
        f"Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}",
        *(f"{server.name}: `{line}`" for server, line in zip(servers, versions, strict=True)),
        f"{machine.python()}, gevent {version('gevent')}, greenlet {version('greenlet')}",
        f"Command: `{circumstances.command}`",
        f"Rounds: {effort.rounds} of {effort.seconds:g} s, servers in turn; figures are medians; seed {effort.seed};"
        f" {subject.effort}",
        f"Load average: {loads[0]:.1f} to {loads[-1]:.1f}, in the median {loads[len(loads) // 2]:.1f};"
        f" {_noise(servers, results)}",
    ]
    if len(servers) > 1:
        facts.append(
            "Ratios: above 1.00 is better than the peer, in every column; each is the median of the rounds' own ratios"
        )
    return "\n".join(f"- {fact}" for fact in facts)


def _what_was_done(entries: Sequence[Entry], results: Results) -> str:
    """The dates and commits; per scenario if there are several commits, after an interruption or a repetition."""
    several = len({entry.commit for entry in entries}) > 1
    lines = []
    for scenario in results:
        commits = dict.fromkeys(entry.commit for entry in entries if entry.scenario == scenario.name)
        commit = f" (commit {', '.join(commits)})" if several else ""
        lines.append(f"- `{scenario.name}`: {scenario.what}{commit}.")
    return "\n".join(lines)


def _limits(servers: Sequence[Server], results: Results) -> str:
    busiest, where = max(
        (rounds.cores("load"), f"`{scenario.name}`, {server.name}")
        for scenario, server, rounds in _each(servers, results)
    )
    parts = [
        f"The generator limits itself to one core, and used at most {busiest:.2f} of it by its own clock ({where})."
    ]
    for name, meaning in LIMITS.items():
        limited: dict[str, list[str]] = {}
        for scenario, server, rounds in _each(servers, results):
            if limit(rounds) == name:
                limited.setdefault(server.name, []).append(f"`{scenario.name}`")
        if limited:
            parts.append(f"**{name}**: {meaning}")
            parts.append("\n".join(f"- {server}: {', '.join(names)}" for server, names in limited.items()))
    return "\n\n".join(parts)


def _each(servers: Sequence[Server], results: Results) -> list[tuple[Scenario, Server, Rounds]]:
    return [
        (scenario, server, rounds)
        for scenario, of_servers in results.items()
        for server, rounds in zip(servers, of_servers, strict=True)
    ]


def _table(columns: Sequence[Column], servers: Sequence[Server], results: Results) -> str:
    rows = [["scenario", "server", *(column.title for column in columns)]]
    for scenario, of_servers in results.items():
        for position, (server, rounds) in enumerate(zip(servers, of_servers, strict=True)):
            name = f"`{scenario.name}`" if position == 0 else ""
            rows.append([name, server.name, *(column.cell(rounds) for column in columns)])
        first, *others = of_servers
        for peer, rounds in zip(servers[1:], others, strict=True):
            name = "**ratio**" if len(others) == 1 else f"**ratio** to {peer.name}"
            rows.append(["", name, *(column.ratio(first, rounds) for column in columns)])
    return table(rows)


def table(rows: Sequence[Sequence[str]], words: Collection[int] = (0, 1)) -> str:
    """A Markdown table. The first row is the head; `words` are the columns without numbers."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [_line(row, widths, words) for row in rows]
    rule = [
        ":" + "-" * (width - 1) if position in words else "-" * (width - 1) + ":"
        for position, width in enumerate(widths)
    ]
    lines.insert(1, _line(rule, widths, words))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], words: Collection[int]) -> str:
    padded = [
        cell.ljust(width) if position in words else cell.rjust(width)
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _noise(servers: Sequence[Server], results: Results) -> str:
    cores, name = max(
        (rounds.cores("others"), f"{scenario.name}, {server.name}")
        for scenario, server, rounds in _each(servers, results)
    )
    return f"other processes meanwhile used {cores:.2f} CPUs at most ({name}, median)"
