"""Each mutant of a daemon, and each fault of a wire, is detected by a test of ``conformance/``: these tests can fail.

The environment variable NSQD_COMMAND selects another nsqd behind the wire.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import installed_nsqd
from tests.mutants import broken_http, broken_nsqd, broken_nsqlookupd, broken_wire

ROOT = Path(__file__).parents[2]
CAUGHT = [
    pytest.param(module.__name__, mutant, check, id=f"{module.__name__.rpartition('.')[2]}-{mutant}")
    for module in (broken_http, broken_nsqd, broken_nsqlookupd)
    for mutant, check in module.MUTANTS.caught_by.items()
]
WIRED_NSQD = os.environ.get("NSQD_COMMAND") or installed_nsqd()


pytestmark = pytest.mark.timeout(300)


def run_checks(daemon: str, module: str, mutant: str, *checks: str) -> str:
    """Run tests of ``conformance/behaviours`` with a mutant, and return their output."""
    mutated = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", module, *shlex.split(mutant)])
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    command += [f"--{daemon}={mutated}", *(f"conformance/behaviours/{check}" for check in checks)]
    # Lost messages never arrive, and other plugins take half a second to load.
    hasty = os.environ | {"CONFORMANCE_PATIENCE": "3", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=hasty, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return run.stdout


@pytest.mark.parametrize(("module", "mutant", "check"), CAUGHT)
def test_a_mutant_is_caught(module: str, mutant: str, check: str):
    daemon = "nsqlookupd" if module == broken_nsqlookupd.__name__ else "nsqd"
    output = run_checks(daemon, module, mutant, check)
    assert f"FAILED conformance/behaviours/{check}" in output, output


@pytest.mark.parametrize("fault", broken_wire.FAULTS)
def test_a_fault_of_the_wire_is_caught(fault: str):
    check = broken_wire.FAULTS[fault].caught_by
    output = run_checks("nsqd", broken_wire.__name__, f"{fault} {WIRED_NSQD}", check)
    assert f"FAILED conformance/behaviours/{check}" in output, output


def test_a_wire_without_a_fault_passes_all_tests_that_catch_faults():
    checks = sorted({fault.caught_by for fault in broken_wire.FAULTS.values()})
    output = run_checks("nsqd", broken_wire.__name__, f"{broken_wire.NO_FAULT} {WIRED_NSQD}", *checks)
    assert re.search(r"^\d+ passed in ", output, re.MULTILINE), output
