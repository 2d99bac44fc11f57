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


@pytest.mark.parametrize("name", ["nsq_pubsub", "nsq_stat", "nsq_to_file", "to_nsq"])
def test_the_version_is_printed(run, name):
    done = run(name, "--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"{name} v1.3.0\n")


def test_nsq_data_prints_what_it_was_built_with_too(run):
    assert run("nsq_data", "--version").stdout.startswith(b"nsq_data v1.3.0 (built w/python")


def test_words_behind_the_flags_are_ignored(refusal):
    assert "--topic required" in refusal("to_nsq", "--rate=1", "what")
