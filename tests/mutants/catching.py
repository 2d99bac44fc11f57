"""Check that a test of ``conformance/`` fails with a mutant."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def assert_caught(program: str, mutant: str, check: str, daemon: str = "nsqd") -> None:
    """Assert that the test fails with this mutant of a program of this folder."""
    command_line = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", f"tests.mutants.{program}", mutant])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [f"--{daemon}={command_line}", f"conformance/behaviours/{check}"]
    hasty = os.environ | {"CONFORMANCE_PATIENCE": "5"}  # short, because lost messages never arrive
    ended = subprocess.run(command, cwd=ROOT, env=hasty, capture_output=True, text=True, check=False)
    assert f"FAILED conformance/behaviours/{check}" in ended.stdout, ended.stdout


def mutants_of(program: str) -> set[str]:
    """The names of a program's mutants."""
    command = [sys.executable, "-m", f"tests.mutants.{program}"]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
