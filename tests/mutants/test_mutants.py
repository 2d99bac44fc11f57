"""Each mutant of a daemon is detected by a test of ``conformance/``, which shows that these tests can fail."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import broken_http, broken_nsqd, broken_nsqlookupd

ROOT = Path(__file__).parents[2]
CAUGHT = [
    pytest.param(module.__name__, mutant, check, id=f"{module.__name__.rpartition('.')[2]}-{mutant}")
    for module in (broken_http, broken_nsqd, broken_nsqlookupd)
    for mutant, check in module.MUTANTS.caught_by.items()
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("module", "mutant", "check"), CAUGHT)
def test_a_mutant_is_caught(module: str, mutant: str, check: str):
    daemon = "nsqlookupd" if module == broken_nsqlookupd.__name__ else "nsqd"
    mutated = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", module, mutant])
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    command += [f"--{daemon}={mutated}", f"conformance/behaviours/{check}"]
    # Lost messages never arrive, and other plugins take half a second to load.
    hasty = os.environ | {"CONFORMANCE_PATIENCE": "3", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=hasty, capture_output=True, text=True, check=False)
    assert f"FAILED conformance/behaviours/{check}" in ended.stdout, ended.stdout
