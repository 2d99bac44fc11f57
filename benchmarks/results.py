"""The result as Markdown that is also readable in a terminal: what was measured where, then one table for each kind."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks import machine
from benchmarks.measure import Effort, Rounds, Server
from benchmarks.scenarios import Kind, Scenario
from benchmarks.subjects import Subject

_BUSY = 0.9
"""From this share of what it may use on, a process is taken to be what limits the rate."""
_NOISE = 0.2
"""CPUs used by strangers from which on a figure is marked."""

_Results = Mapping[Scenario, Sequence[Rounds]]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`command` repeats the run; `load_average` is the machine's (1 minute) before it."""

    command: str
    effort: Effort
    load_average: float


@dataclass(frozen=True, slots=True)
class _Column:
    """`ratio` divides the first server's figure by the second's, or the other way round where less is better."""

    title: str
    cell: Callable[[Rounds], str]
    figure: str = ""
    less_is_better: bool = False


def _number(figure: str, form: str = ",.0f", scale: float = 1.0) -> Callable[[Rounds], str]:
    return lambda rounds: format(rounds.median(figure) * scale, form)


def _throughput(unit: str, form: str, *more: _Column) -> tuple[_Column, ...]:
    return (
        _Column(f"{unit}/s", _number("rate"), "rate"),
        _Column("spread", lambda rounds: f"{rounds.spread('rate'):.0%}"),
        _Column(f"CPU us/{unit}", _number("cpu_us", form), "cpu_us", less_is_better=True),
        _Column(f"{unit}/CPU s", _number("per_cpu_second"), "per_cpu_second"),
        *more,
        _RSS,
        _SERVER_CPUS,
        _Column(f"generator us/{unit}", _number("load_us", form)),
        _Column("its CPUs", lambda rounds: f"{rounds.cores('load'):.2f}"),
        _Column("limited by", lambda rounds: _limit(rounds)),
    )


_CPU_PER_MESSAGE = _Column("CPU us/msg", _number("cpu_us", ".2f"), "cpu_us", less_is_better=True)
_P50 = _Column("p50 us", _number("p50"), "p50", less_is_better=True)
_P99 = _Column("p99 us", _number("p99"), "p99", less_is_better=True)
_RSS = _Column("RSS MiB", _number("rss_bytes", ".0f", 2**-20), "rss_bytes", less_is_better=True)
_SERVER_CPUS = _Column("CPUs used", lambda rounds: f"{rounds.cores('server'):.2f}")

_COLUMNS = {
    Kind.THROUGHPUT: _throughput("msg", ".2f"),
    Kind.QUESTIONS: _throughput("question", ",.0f", _P50, _P99),
    Kind.REGISTRATION: _throughput("channel", ".1f"),
    Kind.LATENCY: (
        _P50,
        _P99,
        _Column("p99.9 us", _number("p999"), "p999", less_is_better=True),
        _Column("msg/s", _number("rate")),
        _CPU_PER_MESSAGE,
        _RSS,
        _SERVER_CPUS,
    ),
    Kind.IDLE: (
        _Column("connections", _number("idle_connections")),
        _Column(
            "RSS KiB/connection",
            _number("idle_connection_bytes", ".1f", 2**-10),
            "idle_connection_bytes",
            less_is_better=True,
        ),
        _Column("CPU us/connection/s", _number("idle_cpu_us", ".1f"), "idle_cpu_us", less_is_better=True),
        _RSS,
        _SERVER_CPUS,
    ),
}

_HEADINGS = {
    Kind.THROUGHPUT: "Throughput",
    Kind.LATENCY: "Latency, from the producer's write to the consumer's read",
    Kind.IDLE: "Idle connections",
    Kind.QUESTIONS: "Questions",
    Kind.REGISTRATION: "Registration",
}


def render(
    subject: Subject,
    circumstances: Circumstances,
    servers: Sequence[Server],
    versions: Sequence[str],
    results: _Results,
) -> str:
    """The whole document, without a newline at its end."""
    parts = [f"# Results of {subject.program}", _preamble(subject, circumstances, servers, versions, results)]
    for kind, heading in _HEADINGS.items():
        of_kind = {scenario: rounds for scenario, rounds in results.items() if scenario.kind is kind}
        if of_kind:
            parts += [f"## {heading}", _table(_COLUMNS[kind], servers, of_kind)]
    parts += ["## What was done", "\n".join(f"- `{scenario.name}`: {scenario.what}." for scenario in results)]
    return "\n\n".join(parts)


def _preamble(
    subject: Subject,
    circumstances: Circumstances,
    servers: Sequence[Server],
    versions: Sequence[str],
    results: _Results,
) -> str:
    effort = circumstances.effort
    facts = [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}",
        f"Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}",
        *(f"{server.name}: `{line}`" for server, line in zip(servers, versions, strict=True)),
        f"Python {platform.python_version()}, gevent {version('gevent')}, greenlet {version('greenlet')}",
        f"Command: `{circumstances.command}`",
        f"Rounds: {effort.rounds} of {effort.seconds:g} s, servers in turn; figures are medians; seed {effort.seed};"
        f" {subject.effort}",
        f"Load average before: {circumstances.load_average:.2f}; {_noise(servers, results)}",
    ]
    if len(servers) > 1:
        facts.append("Ratios: above 1.00 is better than the peer, in every column")
    return "\n".join(f"- {fact}" for fact in facts)


def _table(columns: Sequence[_Column], servers: Sequence[Server], results: _Results) -> str:
    rows = [["scenario", "server", *(column.title for column in columns)]]
    for scenario, of_servers in results.items():
        for position, (server, rounds) in enumerate(zip(servers, of_servers, strict=True)):
            name = f"`{scenario.name}`" if position == 0 else ""
            rows.append([name, server.name, *(column.cell(rounds) for column in columns)])
        first, *others = of_servers
        for peer, rounds in zip(servers[1:], others, strict=True):
            name = "**ratio**" if len(others) == 1 else f"**ratio** to {peer.name}"
            rows.append(["", name, *(_ratio(column, first, rounds) for column in columns)])
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head; names, in the first two columns, are on the left."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    rule = [
        ":" + "-" * (width - 1) if position < 2 else "-" * (width - 1) + ":" for position, width in enumerate(widths)
    ]
    lines.insert(1, _line(rule, widths))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if position < 2 else cell.rjust(width)
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _ratio(column: _Column, first: Rounds, peer: Rounds) -> str:
    if not column.figure:
        return ""
    ours, theirs = (rounds.median(column.figure) for rounds in (first, peer))
    if column.less_is_better:
        ours, theirs = theirs, ours
    return f"**{ours / theirs:.2f}**" if theirs > 0 else ""


def _limit(rounds: Rounds) -> str:
    """What kept the rate from being higher, as far as CPU time tells."""
    server, load, others = (rounds.cores(who) for who in ("server", "load", "others"))
    if load >= _BUSY:
        return "GENERATOR"
    if others >= _NOISE:
        return "(disturbed)"
    if server + load >= _BUSY * (os.cpu_count() or 1):
        return "machine"
    return "server" if server >= _BUSY else "round trips"


def _noise(servers: Sequence[Server], results: _Results) -> str:
    cores, name = max(
        (rounds.cores("others"), f"{scenario.name}, {server.name}")
        for scenario, of_servers in results.items()
        for server, rounds in zip(servers, of_servers, strict=True)
    )
    return f"other processes meanwhile used {cores:.2f} CPUs at most ({name}, median)"
