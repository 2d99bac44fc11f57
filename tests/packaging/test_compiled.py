"""The modules that setup.cfg lists are compiled where that was asked for, and nowhere else."""

import os
import shutil
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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a build is made of, with one module."""
    (tmp_path / "nsq_compat").mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "nsq_compat/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_an_editable_installation_is_not_compiled(tree: Path):
    result = build(tree, "1", "cc", "setup.py", "editable_wheel")
    assert result.returncode != 0
    assert "an editable installation is interpreted" in result.stderr


@pytest.mark.parametrize(
    ("choice", "compiler", "wanted"),
    [
        ("", "cc", "['mypy=="),
        ("1", "cc", "['mypy=="),
        ("0", "cc", "[]"),
        ("", "false", "[]"),
        ("", "/no/such/compiler", "[]"),
        ("1", "false", "NSQ_COMPAT_COMPILED=1: false does not find Python.h, or does not work."),
        ("1", "/no/such/compiler", "NSQ_COMPAT_COMPILED=1: no C compiler"),
        ("yes", "cc", "NSQ_COMPAT_COMPILED=yes: 0, 1 or nothing."),
    ],
)
def test_a_build_compiles_where_it_can_and_fails_only_where_it_must(
    choice: str, compiler: str, wanted: str, tree: Path
):
    asked = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
    result = build(tree, choice, compiler, "-c", asked)
    assert wanted in (result.stderr if result.returncode else result.stdout.splitlines()[-1])


def test_a_wheel_made_without_a_compiler_is_for_every_machine(tree: Path):
    result = build(tree, "", "false", "setup.py", "--quiet", "bdist_wheel")
    assert "nsq_compat stays Python: false does not find Python.h" in result.stderr
    [wheel] = (tree / "dist").glob("*")
    assert wheel.name.endswith("-py3-none-any.whl")


def build(tree: Path, choice: str, compiler: str, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "NSQ_COMPAT_COMPILED": choice, "CC": compiler}
    environment.pop("PYTHONPATH", None)  # scripts/test has the compiled one there
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)
