"""The modules that setup.cfg lists are compiled where that was asked for, and nowhere else."""

import os
import subprocess
import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKED_FOR = os.environ.get("NSQ_COMPAT_COMPILED") == "1"  # scripts/test says so, for its second run


def listed() -> list[str]:
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(ROOT / "setup.cfg")
    return [f"nsq_compat.{module}" for module in setup_cfg["compiled"]["modules"].split()]


@pytest.mark.parametrize("name", listed())
def test_a_module_is_what_was_asked_for(name: str):
    file = import_module(name).__file__
    assert file is not None
    assert Path(file).suffix == (".so" if ASKED_FOR else ".py")


def test_so_is_the_nsqd_that_tests_start():
    nsqd = Path(sys.executable).with_name("nsqd")
    said = subprocess.run([nsqd, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("+compiled)") == ASKED_FOR


def test_an_editable_installation_is_not_compiled():
    result = subprocess.run(
        [sys.executable, "setup.py", "editable_wheel"],
        cwd=ROOT,
        env={**os.environ, "NSQ_COMPAT_COMPILED": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "an editable installation is interpreted" in result.stderr
