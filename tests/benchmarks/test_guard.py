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
SLOWED = "sum(range(1500))"


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
    with pytest.raises(SystemExit, match=r"PUB, each awaits its OK: \S+ loops per message, recorded"):
        guard.main(["--nsqd", nsqd_that(SLOWED).command, "--file", str(record)])


def cost(loops: float, system_calls: float = 5.0) -> dict[str, float]:
    return {"loops": loops, "system_calls": system_calls}


def test_loops_and_system_calls_have_grown_above_fifteen_percent() -> None:
    assert guard.grown({"PUB": cost(1.0)}, {"PUB": cost(1.14)}) == []
    (sentence,) = guard.grown({"PUB": cost(1.0)}, {"PUB": cost(1.16)})
    assert sentence == "PUB: 1.16 loops per message, recorded 1: 1.16 times"
    (sentence,) = guard.grown({"PUB": cost(1.0, 5)}, {"PUB": cost(1.0, 6)})
    assert "6 system calls per message, recorded 5" in sentence


def test_system_calls_that_depend_on_time_do_not_count() -> None:
    batch = next(load for load in LOADS if load.name == "PUB, 50 in a write")
    before = {batch.name: cost(0.1, 100 / batch.messages)}
    assert guard.grown(before, {batch.name: cost(0.1, 200 / batch.messages)}) == []
    assert len(guard.grown(before, {batch.name: cost(0.1, 300 / batch.messages)})) == 1


def test_a_cost_without_a_record_is_reported() -> None:
    (sentence,) = guard.grown({}, {"PUB": cost(1.0)})
    assert "never recorded" in sentence


@pytest.mark.parametrize(("name", "compiled"), [("guard.json", False), ("guard-compiled.json", True)])
def test_the_recorded_files_have_every_load(name: str, compiled: bool) -> None:
    record = json.loads(guard.RECORD.with_name(name).read_text())
    assert record["costs"].keys() == {load.name for load in LOADS}
    assert record["build"].endswith("-compiled") == compiled


def test_a_compiled_nsqd_is_not_compared_with_the_record_of_an_interpreted_one(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.write_text(json.dumps({"build": "python3.11.7-compiled", "costs": {}}))
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
