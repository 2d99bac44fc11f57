"""What the tests found, as rows of the tables in docs/spark.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.spark.crash.running import Outcome


@dataclass(frozen=True, slots=True)
class Kills:
    """What was killed, how often, and what came of it."""

    victim: str
    times: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Work:
    """What was done on which of Spark's masters."""

    name: str
    master: str
    result: str


def lines(found: Iterable[Kills | Work]) -> list[str]:
    """A table of all kills, and one of works by master."""
    kills, works = list[Kills](), dict[str, dict[str, str]]()
    for each in found:
        if isinstance(each, Kills):
            kills.append(each)
        else:
            works.setdefault(each.name, {})[each.master] = each.result
    said: list[str] = []
    if kills:
        said += ["", *_table(["Killed (SIGKILL)", "Messages", "Times", "Lost", "Twice"], map(_of_kills, kills))]
    if works:
        masters = list(dict.fromkeys(master for by_master in works.values() for master in by_master))
        rows = ([name, *(by_master.get(master, "") for master in masters)] for name, by_master in works.items())
        said += ["", *_table(["", *(f"`{master}`" for master in masters)], rows)]
    return said


def _of_kills(row: Kills) -> list[str]:
    outcome = row.outcome
    return [row.victim, *(f"{number:,}" for number in (outcome.published, row.times, outcome.lost, outcome.twice))]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
