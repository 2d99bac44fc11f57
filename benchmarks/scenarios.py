"""Definition of scenarios: flags of the generator in ``load/``, options of the server, and aims."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kind of a scenario determines the columns of its table."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    IDLE = "idle"
    START = "start"
    QUESTIONS = "questions"
    REGISTRATION = "registration"
    BYSTANDER = "bystander"


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a scenario relative to Go's nsqd: `floor` must be reached, `aim` should be; `row` names it.

    Both are ratios of each of `figures`, where above 1 is better than Go's; with `less_is_better` they are ours divided
    by Go's. `cpu` is the floor and the aim by CPU time if they differ. An interpreted nsqd has to reach the part
    `interpreted` of all of them. With `longest_ms` the aim also limits our longest latency, in milliseconds. `why` is
    shown in the result while the aim is missed.
    """

    row: str
    floor: float
    aim: float
    why: str = ""
    figures: tuple[str, ...] = ("rate", "cpu_us")
    less_is_better: bool = False
    longest_ms: float | None = None
    cpu: tuple[float, float] | None = None
    interpreted: float = 1.0

    def bounds(self, figure: str) -> tuple[float, float]:
        """The floor and the aim of a figure."""
        return self.cpu if self.cpu and figure == "cpu_us" else (self.floor, self.aim)


ABOVE_FLOOR: Final = 1.5
"""The aim of a real load is so many times its floor."""
INTERPRETED: Final = 0.75
"""The part of them that an interpreted nsqd has to reach."""


def aim_of_floors(row: str, rate: float, cpu: float, why: str) -> Aim:
    """The aim of a load by its floors, of messages per second and of CPU time."""
    by_cpu = None if cpu == rate else (cpu, cpu * ABOVE_FLOOR)
    return Aim(row, rate, rate * ABOVE_FLOOR, why, cpu=by_cpu, interpreted=INTERPRETED)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. `load` has flags of the generator, `what` is its description in the result. With `tls` nsqd has a
    certificate, with `auth` an auth server, which is part of the generator.

    `ours` are options that only our daemon has. `least_seconds` is the minimum length of a run. `connections` is the
    number of connections for which server and generator need descriptors.
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
    """Format flags of the generator."""
    return tuple(f"-{name}={value}" for name, value in flags.items())


def grouped(title: str, *scenarios: Scenario) -> tuple[Scenario, ...]:
    """Put scenarios of one kind into a table under this heading."""
    return tuple(replace(scenario, group=title) for scenario in scenarios)
