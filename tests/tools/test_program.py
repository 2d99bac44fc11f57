"""How a utility is asked to stop: in a process of its own, with threads, by signals that come close together."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
from nsq_compat.tools.program import Stopping
stopping = Stopping()
for _ in range(5):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
stopping.wait()
assert stopping
print("asked", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_however_many_come(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(50):
            os.kill(process.pid, number)
        out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("asked\n", 0)
