"""CPU time of process trees with ended processes."""

import subprocess
import sys

from benchmarks.process_tree import ENDED, cpu_by_program

CHILD = "import time\nwhile time.process_time() < 0.5: pass"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
print(flush=True)
sys.stdin.read()
"""


def test_ended_processes_are_counted_apart_from_their_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent = cpu_by_program(process.pid)
        process.communicate()
    ended = spent.pop(ENDED)
    (own,) = spent.values()
    assert ended > 0.45
    assert own < ended
