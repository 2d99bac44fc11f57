"""A short run of `make fuzz`, and that it notices what it is for."""

import time

import pytest

from tests.fuzz import driver
from tests.fuzz.driver import PARSERS, Failed, check, fuzz


@pytest.mark.parametrize(
    ("name", "count"), [("v2", 300), ("lookupd", 300), ("http", 500), ("compression", 500), ("log", 40)]
)
def test_any_bytes_lead_to_values_or_a_documented_error(name, count, tmp_path):
    fuzz(name, count, seed=7, failures=tmp_path, traces=False)


@pytest.mark.parametrize("name", PARSERS)
def test_the_same_seed_makes_the_same_inputs(name, tmp_path, monkeypatch):
    runs = []
    for _ in range(2):
        inputs: list[bytes] = []
        monkeypatch.setitem(PARSERS, name, lambda data, inputs=inputs: iter([lambda: inputs.append(data)]))
        fuzz(name, 20, seed=3, failures=tmp_path, traces=False)
        runs.append(inputs)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 10


def raises() -> None:
    raise ZeroDivisionError


def takes_long() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 2 * driver.MAX_SECONDS:
        pass


def never_ends() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("step", "text"), [(raises, "ZeroDivisionError"), (takes_long, "ms in one step"), (never_ends, "no end within")]
)
def test_an_input_that_fails_is_kept(step, text, tmp_path, monkeypatch):
    monkeypatch.setitem(PARSERS, "http", lambda data: iter([step]))
    monkeypatch.setattr(driver, "_ENDLESS_SECONDS", 0.5)
    with pytest.raises(Failed, match=text):
        check("http", b"the input", tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the input"]
