"""Whether a check of ``conformance/`` tells a broken daemon from a whole one."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def assert_caught(program: str, way: str, check: str, daemon: str = "nsqd") -> None:
    """The check must fail with that daemon, broken in that way by a program of this folder."""
    command_line = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", f"tests.mutants.{program}", way])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [f"--{daemon}={command_line}", f"conformance/behaviours/{check}"]
    hasty = os.environ | {"CONFORMANCE_PATIENCE": "5"}  # what is lost need not be waited for at length
    ended = subprocess.run(command, cwd=ROOT, env=hasty, capture_output=True, text=True, check=False)
    assert f"FAILED conformance/behaviours/{check}" in ended.stdout, ended.stdout


def ways_of(program: str) -> set[str]:
    """In which it can be broken."""
    command = [sys.executable, "-m", f"tests.mutants.{program}"]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
