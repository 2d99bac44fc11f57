"""The columns of result tables, for each kind of scenario."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.measure import Rounds
from benchmarks.scenarios import Kind

BUSY = 0.9
"""The share of its CPU limit above which a process is assumed to limit the rate."""
_NOISE = 0.2
"""CPUs used by other processes above which these may limit the rate."""

LIMITS = {
    "server": "the server uses a whole CPU. msg/s is the server's own rate.",
    "machine": "all CPUs are in use. msg/s is what a server with several threads reaches beside the generator. With"
    " more CPUs its rate would rise, and the rate of a server with one thread would not. Of the two ratios, only that"
    " of CPU us/msg holds on any machine.",
    "round trips": "no CPU is busy all the time. Most of a message's time is two processes waking each other, which is"
    " the same for both servers; the server's own part is its CPU us/msg. The ratio of msg/s is therefore closer to"
    " 1.00 than the servers are.",
    "GENERATOR": "the generator's core is full. msg/s and its ratio say nothing about the server; CPU us/msg does.",
    "(disturbed)": "other processes used part of the machine. Only the ratio of CPU us/msg is meaningful.",
}
"""What limits a rate, and what that means for the ratio."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. With a `figure` it has a ratio: first server to peer, or peer to first if less is better."""

    title: str
    cell: Callable[[Rounds], str]
    figure: str = ""
    less_is_better: bool = False

    def ratio(self, first: Rounds, peer: Rounds) -> str:
        """The ratio as text; empty without a `figure`."""
        if not self.figure:
            return ""
        ratio = first.ratio(self.figure, peer, less_is_better=self.less_is_better)
        return f"**{ratio:.2f}**" if ratio else ""


def limit(rounds: Rounds) -> str:
    """What limits the rate according to CPU times: one of `LIMITS`."""
    server, load, others = (rounds.cores(process) for process in ("server", "load", "others"))
    if load >= BUSY:
        return "GENERATOR"
    if server + load >= BUSY * (os.cpu_count() or 1):
        return "machine"
    if server >= BUSY:
        return "server"
    return "(disturbed)" if others >= _NOISE else "round trips"


def _number(figure: str, form: str = ",.0f", scale: float = 1.0) -> Callable[[Rounds], str]:
    return lambda rounds: format(rounds.median(figure) * scale, form)


def _spread(figure: str) -> Column:
    return Column("spread", lambda rounds: f"{rounds.spread(figure):.0%}")


def _cores(title: str, process: str) -> Column:
    return Column(title, lambda rounds: f"{rounds.cores(process):.2f}")


def _throughput(unit: str, form: str, *more: Column) -> tuple[Column, ...]:
    return (
        Column(f"{unit}/s", _number("rate"), "rate"),
        _spread("rate"),
        Column(f"CPU us/{unit}", _number("cpu_us", form), "cpu_us", less_is_better=True),
        _spread("cpu_us"),
        *more,
        _RSS,
        _SERVER_CPUS,
        Column(f"generator us/{unit}", _number("load_us", form)),
        _cores("its CPUs", "load"),
        _OTHERS,
        Column("limited by", limit),
    )


_CPU_PER_MESSAGE = Column("CPU us/msg", _number("cpu_us", ".2f"), "cpu_us", less_is_better=True)
_P50 = Column("p50 us", _number("p50"), "p50", less_is_better=True)
_P99 = Column("p99 us", _number("p99"), "p99", less_is_better=True)
_RSS = Column("RSS MiB", _number("rss_bytes", ".0f", 2**-20), "rss_bytes", less_is_better=True)
_SERVER_CPUS = _cores("CPUs used", "server")
_OTHERS = _cores("others' CPUs", "others")

COLUMNS = {
    Kind.THROUGHPUT: _throughput("msg", ".2f"),
    Kind.QUESTIONS: _throughput("query", ",.0f", _P50, _P99),
    Kind.REGISTRATION: _throughput("channel", ".1f"),
    Kind.LATENCY: (
        _P50,
        _P99,
        _spread("p99"),
        Column("p99.9 us", _number("p999"), "p999", less_is_better=True),
        Column("msg/s", _number("rate")),
        Column("of possible msg/s", lambda rounds: _number("capacity")(rounds) if rounds.median("capacity") else ""),
        Column("written late, p99 us", _number("late_p99")),
        _CPU_PER_MESSAGE,
        _RSS,
        _SERVER_CPUS,
        _OTHERS,
    ),
    Kind.BYSTANDER: (
        _P50,
        _P99,
        _spread("p99"),
        Column("longest ms", _number("longest_ms", ",.1f"), "longest_ms", less_is_better=True),
        Column("written late, p99 us", _number("late_p99")),
        Column("PUBs", _number("messages")),
        Column("done by the others", _number("abuses")),
        Column(
            "late, p99 ms",
            lambda rounds: _number("abuse_p99", ",.1f", 1e-3)(rounds) if rounds.median("abuse_p99") else "",
            "abuse_p99",
            less_is_better=True,
        ),
        Column("came early", lambda rounds: _number("abuse_early")(rounds) if rounds.median("abuse_p99") else ""),
        Column("seconds", _number("seconds", ".1f")),
        Column("CPU s", _number("server_cpu", ".2f")),
        Column("peak RSS MiB", _number("rss_bytes", ",.0f", 2**-20), "rss_bytes", less_is_better=True),
        _SERVER_CPUS,
        _cores("generator's CPUs", "load"),
        _OTHERS,
    ),
    Kind.IDLE: (
        Column("connections", _number("idle_connections")),
        Column(
            "RSS KiB/connection",
            _number("idle_connection_bytes", ".1f", 2**-10),
            "idle_connection_bytes",
            less_is_better=True,
        ),
        Column("CPU us/connection/s", _number("idle_cpu_us", ".1f"), "idle_cpu_us", less_is_better=True),
        _spread("idle_cpu_us"),
        _RSS,
        _SERVER_CPUS,
        _OTHERS,
    ),
    Kind.START: (
        Column("messages", _number("messages")),
        Column("ms", _number("milliseconds"), "milliseconds", less_is_better=True),
        _spread("milliseconds"),
        Column("CPU ms", _number("cpu_ms"), "cpu_ms", less_is_better=True),
        _RSS,
        _OTHERS,
    ),
}
