"""`scripts/environment`: prerequisites are named all at once, and a complete environment is not made again; and what
`scripts/test` says before it does anything.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Two of them run pip, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the scripts, and with a program `id` that says that the user is not root."""
    for name in ("programs", ".ci"):
        (tmp_path / name).mkdir()
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    for name in ("setup.cfg", "pyproject.toml", ".ci/constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "programs" / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "programs" / "id").chmod(0o755)
    return tmp_path


def source_and_run(checkout: Path, command: str, path: str = os.environ["PATH"]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source scripts/environment; {command}"],
        cwd=checkout,
        env=os.environ | {"PATH": f"{checkout / 'programs'}:{path}"},
        capture_output=True,
        text=True,
        check=False,
    )


def link(checkout: Path, *programs: str) -> None:
    for program in programs:
        (checkout / "programs" / program).symlink_to(str(shutil.which(program)))


def test_the_help_of_the_demonstration_needs_nothing_installed(tmp_path):
    for file in ("scripts/run", "scripts/environment", "conformance/demo/options.py"):
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((SCRIPTS.parent / file).read_bytes())
    asked = subprocess.run(["bash", "scripts/run", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "usage: scripts/run" in asked.stdout
    assert "--no-spark" in asked.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("has_sudo", "command"),
    [
        (True, "sudo apt-get install its-package another-package"),
        (False, "su -c 'apt-get install its-package another-package'"),
    ],
)
def test_all_missing_programs_are_named_at_once_with_the_command_that_installs_them(
    has_sudo: bool, command: str, checkout: Path
) -> None:
    link(checkout, "bash", "dirname", "sed")
    if has_sudo:
        (checkout / "programs" / "sudo").symlink_to("/bin/true")
    run = source_and_run(checkout, "require sed:sed no-such-program:its-package another-one:another-package", path="")
    assert run.returncode == 1
    assert run.stderr == f"Missing: no-such-program, another-one. On Debian, install with:  {command}\n"


def test_missing_privileges_and_programs_are_named_together_before_anything_is_installed(checkout: Path) -> None:
    link(checkout, "bash", "dirname", "sed", "paste")
    run = subprocess.run(
        ["scripts/test"],
        cwd=checkout,
        env={"PATH": f"{checkout / 'programs'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    privileges, programs = run.stderr.splitlines()
    assert privileges.startswith("Some tests need privileges that are missing here: root")
    assert privileges.endswith("To leave them out:  scripts/test --without-privileges")
    assert programs.startswith("Missing: Python 3.11, Python's venv, git, make, ")
    assert run.returncode == 1
    assert not (checkout / ".venv").exists()


def test_a_silent_step_shows_that_it_is_still_working(checkout: Path) -> None:
    step = "printf 'one\\ntw'; until grep -q 'still working after' err; do sleep 0.02; done; printf 'o\\nthree'"
    run = source_and_run(checkout, f"touch err; {{ {step}; }} | PROGRESS_SECONDS=0.01 show_progress 2>err")
    assert run.returncode == 0
    lines = (checkout / "err").read_text().split("\n")
    assert "   still working after 0 s" in lines
    assert [line for line in lines if not line.startswith("   still working after")] == ["one", "two", "three"]


@pytest.mark.parametrize(("no_color", "shown"), [("", "\x1b[1;36m== hello\x1b[0m\r\n"), ("1", "== hello\r\n")])
def test_narration_is_coloured_on_a_terminal_unless_no_color_is_set(no_color: str, shown: str, checkout: Path) -> None:
    ours, terminal = os.openpty()
    command = ["bash", "-c", "source scripts/environment; say hello"]
    subprocess.run(command, cwd=checkout, env=os.environ | {"NO_COLOR": no_color}, stderr=terminal, check=True)
    assert os.read(ours, 1000).decode() == shown
    os.close(ours)
    os.close(terminal)
    assert source_and_run(checkout, "say hello").stderr == "== hello\n"


def test_the_status_of_a_step_that_shows_its_progress_is_kept(checkout: Path) -> None:
    assert source_and_run(checkout, "{ echo almost; false; } | show_progress").returncode == 1


def test_nothing_is_said_if_nothing_is_missing(checkout: Path) -> None:
    run = source_and_run(checkout, "require sh:dash 'Python 3.11:python3'")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("state", ["interrupted", "copied", "with another Python"])
def test_an_incomplete_environment_is_made_again(state: str, checkout: Path) -> None:
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    match state:
        case "interrupted":
            (programs / "python").symlink_to(sys.executable)
        case "copied":
            (programs / "python").symlink_to(sys.executable)
            (programs / "pip").write_text("#!/no/longer/here/python\n")
            (programs / "pip").chmod(0o755)
        case _:
            (programs / "python").symlink_to("/no/such/python3.10")
    run = source_and_run(checkout, "pip_install() { ls -d .venv/bin/pip; }; make_environment demo")
    assert run.returncode == 0, run.stderr
    assert run.stdout == ".venv/bin/pip\n"
    assert subprocess.run([programs / "pip", "--version"], check=False, capture_output=True).returncode == 0
    again = source_and_run(checkout, "pip_install() { echo called; }; make_environment demo")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_ctrl_c_during_the_installation_says_that_it_was_interrupted(checkout: Path) -> None:
    # pip ends with status 1 after Ctrl-C, which the terminal sends to bash, too.
    step = "pip_install() { kill -INT $$; return 1; }; make_environment demo"
    run = source_and_run(checkout, step)
    assert run.returncode == 1
    assert run.stderr.splitlines()[1:] == ["Interrupted. The next run installs the rest."]


def test_a_failed_installation_shows_the_end_of_pips_output_and_is_tried_again(checkout: Path) -> None:
    (checkout / "setup.cfg").write_text("this is no setup.cfg")
    for _ in range(2):
        run = source_and_run(checkout, "make_environment demo")
        assert run.returncode == 1
        assert "pip could not install nsq_compat[demo]" in run.stderr
        assert "rror" in run.stderr


@pytest.mark.parametrize(
    ("asked", "found"),
    [("demo", True), ("bench demo", True), ("demo lint", False), ("dem", False), ("demo elsewhere", False)],
)
def test_an_installation_with_more_extras_is_sufficient(asked: str, found: bool, checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "installed-demo,test,bench").write_text("as it is\n")
    (checkout / ".venv" / "installed-demo,elsewhere").write_text("as it was\n")
    assert (source_and_run(checkout, f'is_installed "as it is" {asked}').returncode == 0) == found
