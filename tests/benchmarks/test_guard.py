"""The guard fails if the message path is made slower on purpose, and passes otherwise."""

import json
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.path_loads import LOADS
from tests.benchmarks.conftest import NsqdThat

# Counting in valgrind takes seconds per load: two loads are enough here.
SOME = tuple(load for load in LOADS if load.name in {"PUB, each awaits its OK", "MPUB of 200, delivered at RDY 1, FIN"})

# Makes each publish about a third more expensive.
SLOWED = "for _ in range(500): pass"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guard, "LOADS", SOME)
    path = tmp_path / "guard.json"
    guard.main(["--record", "--file", str(path)])
    return path


@pytest.mark.timeout(600)
def test_the_guard_passes_and_fails_if_every_publish_is_made_slower(
    record: Path, nsqd_that: NsqdThat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.main(["--file", str(record)])
    assert "PUB, each awaits its OK" in capsys.readouterr().out
    monkeypatch.setattr(guard, "LOADS", SOME[:1])
    growth = (
        r"PUB, each awaits its OK: \S+ loops per message, recorded \S+ \S+ times; \S+ patched \(0 -> 50\d\S* lines\)"
    )
    with pytest.raises(SystemExit, match=growth):
        guard.main(["--nsqd", nsqd_that(SLOWED).command, "--file", str(record)])


def record_of(load: str, loops: float, system_calls: float = 5.0, **functions: float) -> guard.Record:
    return {"costs": {load: {"loops": loops, "system_calls": system_calls}}, "functions": {load: functions}}


def test_loops_and_system_calls_have_grown_above_fifteen_percent() -> None:
    assert guard.grown(record_of("PUB", 1.0), record_of("PUB", 1.14)) == []
    (sentence,) = guard.grown(record_of("PUB", 1.0), record_of("PUB", 1.16))
    assert sentence.startswith("PUB: 1.16 loops per message, recorded 1: 1.16 times; no function has more lines")
    (sentence,) = guard.grown(record_of("PUB", 1.0, 5), record_of("PUB", 1.0, 6))
    assert "6 system calls per message, recorded 5" in sentence


def test_the_functions_that_have_grown_are_named_the_largest_growth_first() -> None:
    before = record_of("PUB", 1.0, append=20, wake=5, read=30)
    now = record_of("PUB", 2.0, append=31, wake=5.5, read=30, scan=40)
    (sentence,) = guard.grown(before, now)
    assert sentence.endswith("2.00 times; scan (0 -> 40 lines), append (20 -> 31 lines)")


DUMP = """\
positions: line
events: Ir sysCount
fn=append
10 100 1
+2 20
fn=read
4 30
cfn=append
calls=2 10
* 120 1
-1 5
fn=append
11 1
totals: 156 1
"""


def test_instructions_of_a_function_are_those_of_its_own_lines() -> None:
    assert guard._totals(DUMP) == guard.Cost(156, 1, {"append": 121, "read": 35})


def test_system_calls_that_depend_on_time_do_not_count() -> None:
    load = next(load for load in LOADS if load.name == "PUB, 50 in a write")
    before = record_of(load.name, 0.1, 100 / load.messages)
    assert guard.grown(before, record_of(load.name, 0.1, 200 / load.messages)) == []
    assert len(guard.grown(before, record_of(load.name, 0.1, 300 / load.messages))) == 1


def test_a_cost_without_a_record_is_reported() -> None:
    (sentence,) = guard.grown({"costs": {}, "functions": {}}, record_of("PUB", 1.0))
    assert "never recorded" in sentence


@pytest.mark.parametrize(("name", "compiled"), [("guard.json", False), ("guard-compiled.json", True)])
def test_the_recorded_files_have_every_load(name: str, compiled: bool) -> None:
    record = json.loads(guard.RECORD.with_name(name).read_text())
    assert record["costs"].keys() == record["functions"].keys() == {load.name for load in LOADS}
    assert all(record["functions"].values())
    assert record["build"].endswith("-compiled") == compiled


def test_a_compiled_nsqd_is_not_compared_with_the_record_of_an_interpreted_one(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.write_text(json.dumps({"build": "python3.11.7-compiled", "costs": {}, "functions": {}}))
    with pytest.raises(SystemExit, match=r"is of python3\.11\.7-compiled, this is python3\.\S+: they cannot"):
        guard.main(["--file", str(path)])


def test_another_python_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    guard._refuse_another_kind("python3.11.7", "python3.11.9")
    assert capsys.readouterr().out == ""
    guard._refuse_another_kind("python3.11.7", "python3.13.0")
    assert "this is python3.13.0" in capsys.readouterr().out


def test_missing_valgrind_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install valgrind"):
        guard.main([])
