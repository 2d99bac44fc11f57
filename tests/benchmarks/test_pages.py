"""The pages of results are consistent with the data and with each other."""

from pathlib import Path

from benchmarks.floors import AIM, BEGIN, END, FLOOR, SHORT, UNKNOWN, bounds_of
from benchmarks.nsqd_aims import AIMS, HEADLINES
from benchmarks.nsqd_scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def rows(text: str) -> list[list[str]]:
    """The rows of the first table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def section(heading: str) -> str:
    return (BENCHMARKS / "RESULTS.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_floors_and_aims_in_the_result_equal_those_of_the_data() -> None:
    said = {row[1].strip("`"): row[2:4] for row in rows(section("Floors and aims"))}
    assert said == {name: bounds_of(aim) for name, aim in AIMS.items()}


def between_marks(page: str) -> list[list[str]]:
    return rows((ROOT / page).read_text().partition(BEGIN)[2].partition(END)[0])


def test_the_summary_equals_the_result() -> None:
    worst_first = [SHORT, UNKNOWN, FLOOR, AIM]
    found: dict[str, list[str]] = {}
    for row in rows(section("Floors and aims")):
        found.setdefault(row[0], []).append(row[5].partition(", ")[0])
    short = between_marks("docs/benchmarks.md")
    assert {row[0]: row[4].partition(", ")[0] for row in short} == {
        row: min(reached, key=worst_first.index) for row, reached in found.items()
    }


def test_the_readme_has_a_few_rows_of_the_summary() -> None:
    summary = {row[0].partition(" (less")[0]: row for row in between_marks("docs/benchmarks.md")}
    expected = [
        [title, *(cell.partition(" (`")[0] for cell in summary[name][3::2])] for name, title in HEADLINES.items()
    ]
    assert between_marks("README.md") == expected
    assert len(expected) <= 6


def test_the_result_has_every_scenario() -> None:
    page = (BENCHMARKS / "RESULTS.md").read_text()
    assert [scenario.name for scenario in SCENARIOS if f"\n- `{scenario.name}`: " not in page] == []


def test_every_page_of_results_is_listed_with_its_command() -> None:
    map_of_pages = (BENCHMARKS / "README.md").read_text()
    missing = [page.name for page in BENCHMARKS.glob("RESULTS*.md") if f"]({page.name})" not in map_of_pages]
    assert missing == []
