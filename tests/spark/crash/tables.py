"""Results of the tests, as rows of the tables in docs/spark.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.spark.crash.running import Outcome


@dataclass(frozen=True, slots=True)
class Kills:
    """A kind of process, the number of kills, and the outcome."""

    victim: str
    times: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Work:
    """A work on one of Spark's masters."""

    name: str
    master: str
    result: str


def lines(found: Iterable[Kills | Work]) -> list[str]:
    """Return a table of kills and a table of works by master."""
    kills, works = list[Kills](), dict[str, dict[str, str]]()
    for each in found:
        if isinstance(each, Kills):
            kills.append(each)
        else:
            works.setdefault(each.name, {})[each.master] = each.result
    fields_of: list[str] = []
    if kills:
        fields_of += ["", *_table(["Killed (SIGKILL)", "Messages", "Times", "Lost", "Twice"], map(_of_kills, kills))]
    if works:
        masters = list(dict.fromkeys(master for by_master in works.values() for master in by_master))
        rows = ([name, *(by_master.get(master, "") for master in masters)] for name, by_master in works.items())
        fields_of += ["", *_table(["", *(f"`{master}`" for master in masters)], rows)]
    return fields_of


def _of_kills(row: Kills) -> list[str]:
    outcome = row.outcome
    return [row.victim, *(f"{number:,}" for number in (outcome.published, row.times, outcome.lost, outcome.twice))]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
