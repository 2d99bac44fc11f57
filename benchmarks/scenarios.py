"""What a scenario is: how the generator in ``load/`` is called, what the server is told, what is asked of it."""

from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """Which figures a scenario is about, and so which columns its table has."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    IDLE = "idle"
    START = "start"
    QUESTIONS = "questions"
    REGISTRATION = "registration"
    BYSTANDER = "bystander"


@dataclass(frozen=True, slots=True)
class Aim:
    """What is asked of a scenario beside Go's nsqd: `floor` must be reached, `aim` is meant to be; `row` says of what.

    Both are ratios of each of `figures`, where above 1 is better than Go's; with `less_is_better` they are ours divided
    by Go's. With `longest_ms` the aim also wants our longest latency to be at most so many milliseconds, whatever Go's
    is. `why` is a sentence for the result as long as the aim is not reached.
    """

    row: str
    floor: float
    aim: float
    why: str = ""
    figures: tuple[str, ...] = ("rate", "cpu_us")
    less_is_better: bool = False
    longest_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load` are flags of the generator. `what` is a sentence for the result. With `tls` nsqd has a certificate,
    with `auth` an auth server, which is part of the generator.

    `ours` are options that only our daemon knows. `least_seconds` is how long a run takes at least. `connections` are
    what the server and the generator need descriptors for.
    """

    name: str
    what: str
    load: tuple[str, ...]
    kind: Kind = Kind.THROUGHPUT
    options: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    tls: bool = False
    auth: bool = False
    least_seconds: float = 0.0
    connections: int = 0
    group: str = ""
    aim: Aim | None = None


def load_of(**flags: str | float) -> tuple[str, ...]:
    """Flags of the generator."""
    return tuple(f"-{name}={value}" for name, value in flags.items())


def grouped(title: str, *scenarios: Scenario) -> tuple[Scenario, ...]:
    """Scenarios of one kind, which have a table of their own under this heading."""
    return tuple(replace(scenario, group=title) for scenario in scenarios)
