"""How a utility stops: in a process of its own, with threads, after signals in quick succession. And how all utilities
refuse wrong options.
"""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from nsq_compat import build_line, version_text

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
    assert (done.returncode, done.stdout.decode()) == (0, f"{name} v1.3.0\n{build_line()}\n")


def test_nsq_data_prints_what_it_was_built_with_too(run):
    assert run("nsq_data", "--version").stdout.decode() == f"{version_text('nsq_data')}\n"


NSQD = "--nsqd-tcp-address=127.0.0.1:1"
REFUSALS = {
    "to_nsq": {
        "--rate=1 what": "--topic required",
        f"--topic='a b' {NSQD}": "--topic 'a b' is not a valid name",
        "--topic=t --nsqd-tcp-address=h": "not host:port: 'h'",
    },
    "nsq_stat --topic=t --channel=c": {
        "--nsqd-http-address=127.0.0.1:1": "ERROR: failed to get nsqd stats - failed to query any nsqd",
    },
    "nsq_to_file": {"--topic=t": "--nsqd-tcp-address or --lookupd-http-address required"},
    f"nsq_to_file --topic=t {NSQD}": {
        "--topic='a b'": "'a b' is not a valid topic name",
        "--channel='a b'": "'a b' is not a valid channel name",
        "--topic-pattern='('": "--topic-pattern: missing )",
        "--consumer-opt=no_such_option,1": "invalid option no_such_option",
        "--sync-interval=0": "--sync-interval should be positive",
        "--topic-refresh=-1s": "--topic-refresh should be positive",
        "--max-in-flight=0": "max_in_flight must be 1 or more",
        "--gzip --filename-format='<TOPIC>'": "missing <REV> in --filename-format",
        "--topic=.. --filename-format='<TOPIC>/x'": "leads out of the output directory",
        "--log-level=x --version": "--log-level is invalid",
        "what else": "unknown arguments: [what else]",
    },
    "nsq_to_http": {"--topic=t": "--nsqd-tcp-address or --lookupd-http-address required"},
    f"nsq_to_http --topic=t {NSQD}": {
        **{
            f"--header='{word}'": "--header value format should be 'key=value'" for word in ("", "x", "A:", ":b", "A: ")
        },
        "--topic=": "--topic and --channel are required",
        "--content-type=x --get=x": "--content-type only used with --post",
        "--content-type= --post=x": "--content-type requires a value when used",
        "-n1 --x": "flag provided but not defined: -n1",
        "--mode=hostpol": "must be one of round-robin, hostpool, epsilon-greedy",
        "": "--get or --post required",
        "--get=http://h/%s --post=http://h/": "use --get or --post not both",
        "--get=http://h/": "invalid GET address - must be a printf string",
        "--get=http://h/%s%s": "invalid GET address - must be a printf string",
        "--post=http://h/ --sample=1.1": "ERROR: --sample must be between 0.0 and 1.0",
        "--post=http://h/ --sample=nan": "ERROR: --sample must be between 0.0 and 1.0",
        "--post=http://h/ --n=0": "no handlers",
        "--post=h": "h: MissingSchema",
        "--post=http://h/ --http-client-request-timeout=0": "--http-client-request-timeout should be positive",
        "--post=http://h/ --topic='a b'": "'a b' is not a valid topic name",
        "--lookupd-http-address=h:1": "use --nsqd-tcp-address or --lookupd-http-address not both",
    },
    "nsq_to_nsq": {
        "": "--topic and --channel are required",
        "--topic='a b'": "--topic is invalid",
        "--topic=t --destination-topic='a b'": "--destination-topic is invalid",
        "--topic=t --channel='a b'": "--channel is invalid",
        "--topic=t": "--nsqd-tcp-address or --lookupd-http-address required",
        "--topic=t --nsqd-tcp-address=h:1": "--destination-nsqd-tcp-address required",
        "--topic=t --nsqd-tcp-address=h:1 --destination-nsqd-tcp-address=h": "not host:port: 'h'",
        "--topic=t --mode=all": "must be one of round-robin, hostpool, epsilon-greedy",
        "--topic=t --non-json=lose": "must be one of requeue, pass, drop",
    },
    "nsq_redrive --topic=t --channel=c --nsqd-http-address=127.0.0.1:1": {
        "--topic=": "--topic and --channel are required",
        "--channel='a b'": "--channel is invalid",
        "--dead-letter-topic={topic}": "the dead-letter topic is the destination",
        "--count=-1": "--count must not be negative",
        "--rate=-1": "--rate must not be negative",
        "--lookupd-http-address=127.0.0.1:1": "use --nsqd-http-address or --lookupd-http-address not both",
        "--consumer-opt=nonsense,1": "nonsense",
    },
    "nsq_pull": {"--topic=t --channel=c": "--nsqd-tcp-address or --lookupd-http-address required"},
    f"nsq_pull --topic=t --channel=c {NSQD}": {
        "--topic=": "--topic required",
        "--channel=": "--channel required",
        "--topic='a b'": "'a b' is not a valid topic name",
        "--nsqd-tcp-address=h": "not host:port: 'h'",
        "--max-in-flight=0": "--max-in-flight must be > 0",
        "--wait=-1s": "--wait must not be negative",
        "--http-address=256.0.0.1:x": "listen (256.0.0.1:x) failed",
    },
    "nsq_pubsub": {
        "": "--nsqd-tcp-address or --lookupd-http-address required",
        f"{NSQD} --lookupd-http-address=h:1": "use --nsqd-tcp-address or --lookupd-http-address not both",
        f"{NSQD} --max-in-flight=0": "--max-in-flight must be > 0",
        "--nsqd-tcp-address=h": "not host:port: 'h'",
    },
}


@pytest.mark.parametrize(
    ("command", "text"), [(f"{base} {more}", text) for base, texts in REFUSALS.items() for more, text in texts.items()]
)
def test_wrong_options_are_refused_with_the_reason(run, command, text):
    program, *flags = shlex.split(command)
    done = run(program, *flags)
    log = done.stderr.decode()
    assert text in log
    assert "Traceback" not in log
    assert (done.returncode, done.stdout) == (2 if f"Usage of {program}:" in log else 1, b"")
