"""How a utility stops: in a process of its own, with threads, after signals in quick succession. And how all utilities
refuse wrong options.
"""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_compat import build_line, version_text
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import installed_nsqd
from tests.packaging.release import settings, words
from tests.tools.nsqd import Nsqd

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


HOSTILE = "ev\x1b]0;owned\x07\u009b2J\n2026/01/01 00:00:00 forged"
SPEAKER = """
import logging, sys
from nsq_compat.tools.program import log_plainly, say
text = bytes.fromhex(sys.argv[1]).decode()
log_plainly()
say(text)
try:
    raise ValueError(text)
except ValueError as error:
    logging.exception("%s", error)
"""


def test_text_of_a_daemon_neither_forges_a_line_nor_controls_the_terminal():
    # Not in the source, of which Python 3.13 shows lines in the traceback.
    command = [sys.executable, "-c", SPEAKER, HOSTILE.encode().hex()]
    said = subprocess.run(command, stderr=subprocess.PIPE, check=True, timeout=30).stderr
    escaped = HOSTILE.encode("unicode_escape")
    assert said.count(escaped) == 2
    assert not re.search(rb"[\x00-\x09\x0b-\x1f]|\xc2[\x80-\x9f]", said)
    first, second, *traceback = said.splitlines()
    assert first.endswith(b" " + escaped)
    assert second.endswith(b" ERR " + escaped)
    assert traceback[0] == b"Traceback (most recent call last):"


SMALLEST_PIPE = 4096


@pytest.mark.parametrize("modules", [0, 25, 100])
@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin", "nsq_data", "nsq_pull", "nsq_tail"])
def test_ctrl_c_while_a_program_imports_its_modules_ends_it_silently(program, modules):
    assert interrupted(program, modules) == (-signal.SIGINT, "")


def test_ctrl_c_while_the_conformance_kit_imports_its_modules_ends_it_silently():
    assert interrupted("nsq-conformance", 0) == (-signal.SIGINT, "")


def test_ctrl_c_while_the_demonstration_imports_its_modules_ends_it_silently():
    command = ("-m", "nsq_conformance.demo", "--help")
    assert interrupted_command(command, "argparse", 25) == (-signal.SIGINT, "")


def interrupted(program: str, modules: int) -> tuple[int, str]:
    """`interrupted_command` for a console script."""
    scripts = settings()["options.entry_points"]["console_scripts"]
    first, _, function = dict(line.split(" = ") for line in words(scripts))[program].partition(":")
    code = f"import sys; from {first} import {function}; sys.exit({function}())"
    return interrupted_command(("-c", code, "--help"), first, modules)


def interrupted_command(words: Sequence[str], first: str, modules: int) -> tuple[int, str]:
    """Exit status and output of Python that is interrupted this number of modules after the first of its program."""
    command = [sys.executable, "-X", "importtime", *words]
    report, written = os.pipe()
    # The process waits where its report of imported modules fills the pipe, so it cannot end before the signal. The
    # pipe is made small before anything is in it.
    fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, bufsize=0) as process:
        os.close(written)
        process.stderr = os.fdopen(report, "rb", buffering=0)
        while process.stderr.readline().split()[-1:] != [first.encode()]:
            assert process.poll() is None
        for _ in range(modules):
            process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=60)
    other = [line for line in log.decode().splitlines() if not line.startswith("import time:")]
    return process.returncode, "\n".join([*other, *out.decode().splitlines()])


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
        "--nsqd-http-address=127.0.0.1:1": "ERROR: failed to get nsqd stats - nsqd 127.0.0.1:1: ",
    },
    "nsq_to_file": {"--topic=t": "--nsqd-tcp-address or --lookupd-http-address required"},
    f"nsq_to_file --topic=t {NSQD}": {
        "--topic='a b'": "'a b' is not a valid topic name",
        "--channel='a b'": "'a b' is not a valid channel name",
        "--topic-pattern='('": "--topic-pattern: missing )",
        "--consumer-opt=no_such_option,1": "invalid option no_such_option",
        "--sync-interval=0": "--sync-interval should be positive",
        "--topic-refresh=-1s": "--topic-refresh should be positive",
        "--max-topics=-1": "--max-topics must not be negative",
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
        "--post=h": "h: not a URL of HTTP",
        "--post=http://h/ --header='A B: c\nd'": "a header is not valid",
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
        "--nsqd-http-address=https://me:secret@h:1": "the addresses must not have a user and password",
        "--consumer-opt=nonsense,1": "nonsense",
    },
    "nsq_rewind --topic=t --channel=c --nsqd-http-address=127.0.0.1:1": {
        "": "--to is required",
        "--to=1h --topic=": "--topic and --channel are required",
        "--to=1h --channel='a b'": "--channel is invalid",
        "--to=1h --lookupd-http-address=127.0.0.1:1": "use --nsqd-http-address or --lookupd-http-address not both",
        "--to=1h 2h": "unknown arguments: [2h]",
    },
    "nsq_replay --topic=t --nsqd-http-address=127.0.0.1:1": {
        "--topic=": "--topic is required",
        "--topic='a b'": "--topic is invalid",
        "--destination-topic=x": "--destination-topic requires --destination-nsqd-tcp-address",
        "--rate=-1": "--rate must not be negative",
        "--consumer-opt=nonsense,1": "nonsense",
        "--nsqd-http-address=127.0.0.1:2 --from=5": "an offset is a place on one nsqd",
    },
    "nsq_tail --topic=t --from=1h": {
        NSQD: "--nsqd-http-address or --lookupd-http-address required",
        f"{NSQD} --channel=c": "--from requires --nsqd-http-address too, for each nsqd",
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


CONSUMERS = {
    "nsq_tail": "--topic=t",
    "nsq_to_file": "--topic=t --output-dir={folder}",
    "nsq_to_http": "--topic=t --post=http://127.0.0.1:1/",
    "nsq_to_nsq": "--topic=t --destination-nsqd-tcp-address=127.0.0.1:2",
    "nsq_pubsub": "--http-address=127.0.0.1:0",
    "nsq_pull": "--topic=t --channel=c --http-address=127.0.0.1:0",
}
TCP_HINT = "is this nsqd's TCP port?"
WRONG_ADDRESSES = [
    *((f"{program} {flags}", "tcp", text) for program, flags in CONSUMERS.items() for text in ("refused", TCP_HINT)),
    *(("to_nsq --topic=t", "tcp", text) for text in ("refused", TCP_HINT)),
    *(
        (f"{program} --topic=t", "http", text)
        for program in (
            "nsq_stat --channel=c",
            "nsq_redrive --channel=c",
            "nsq_rewind --channel=c --to=1h",
            "nsq_replay",
            "nsq_tail --from=1h",
        )
        for text in ("refused", "is this an HTTP port?")
    ),
]


@pytest.mark.parametrize(("command", "kind", "text"), WRONG_ADDRESSES)
def test_a_named_nsqd_that_cannot_be_used_at_the_start_ends_the_program(run, nsqd, tmp_path, command, kind, text):
    wrong = nsqd.http_address if kind == "tcp" else nsqd.tcp_address
    address = "127.0.0.1:1" if text == "refused" else wrong
    program, *flags = shlex.split(command.format(folder=tmp_path))
    # The right one beside it does not help: the program would silently lack a part of its messages.
    right = [] if program == "to_nsq" else [f"--nsqd-{kind}-address={getattr(nsqd, f'{kind}_address')}"]
    done = run(program, f"--nsqd-{kind}-address={address}", *right, *flags, data=b"x")
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = [each for each in done.stderr.decode().splitlines() if text in each]
    assert line.count(address) == 1
    assert not re.search("Traceback|Errno|_Http|Error\\(", done.stderr.decode())


REMEDIES = {"tls": "use --{}=tls_v1", "auth": "give a secret with --{}=auth_secret,SECRET"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[dict[str, Nsqd]]:
    """An nsqd that requires TLS, and one that requires a secret."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    options = {
        "tls": [*certificates.options, "--tls-required=tcp-https"],
        "auth": ["--auth-http-address=127.0.0.1:1", "--http-publish-without-auth"],
    }
    with ExitStack() as running:
        yield {
            name: running.enter_context(Nsqd(installed_nsqd(), tmp_path_factory.mktemp(name), options=options[name]))
            for name in REMEDIES
        }


# Flags, and the place of the address.
GUARDED = {
    **{f"{program} {flags}": "--nsqd-tcp-address={tcp}" for program, flags in CONSUMERS.items()},
    "to_nsq --topic=t": "--nsqd-tcp-address={tcp}",
    "nsq_to_nsq --topic=t --nsqd-tcp-address={open}": "--destination-nsqd-tcp-address={tcp}",
    "nsq_pull --topic=t --channel=c --nsqd-tcp-address={open}": "--destination-nsqd-tcp-address={tcp}",
    "nsq_redrive --topic=t --channel=c --dead-letter-topic=dead": "--nsqd-http-address={http}",
}


@pytest.mark.parametrize("guard", REMEDIES)
@pytest.mark.parametrize("command", GUARDED)
def test_an_nsqd_that_requires_tls_or_a_secret_is_reported_at_the_start_with_the_option_to_use(
    start, nsqd, guarded, tmp_path, command, guard
):
    guarded[guard].asks("POST", "/pub?topic=dead", b"letter")
    addresses = {"tcp": guarded[guard].tcp_address, "http": guarded[guard].http_address, "open": nsqd.tcp_address}
    program, *flags = shlex.split(f"{command} {GUARDED[command]}".format(folder=tmp_path, **addresses))
    process = start(program, *flags)
    log = process.stderr.read()  # standard input is open, and empty
    assert process.wait(timeout=60) == 1, log
    publishes = program == "to_nsq" or "--destination" in GUARDED[command]
    assert REMEDIES[guard].format("producer-opt" if publishes else "consumer-opt") in log
    assert "--retry waits" not in log


def test_with_retry_it_waits_for_an_nsqd_that_starts_later(start, tmp_path):
    with Nsqd(installed_nsqd(), tmp_path) as nsqd:
        nsqd.create_channel("t", "c")
        nsqd.publish("t", b"one")
        tcp, http = nsqd.tcp_address, nsqd.http_address
    waiting = [
        start("nsq_tail", "--topic=t", "--channel=c", f"--nsqd-tcp-address={tcp}", "--n=1", "--retry"),
        start("nsq_stat", "--topic=t", "--channel=c", f"--nsqd-http-address={http}", "--count=1", "--retry"),
        start(
            "nsq_redrive",
            "--topic=x",
            "--channel=c",
            "--dead-letter-topic=t",
            f"--nsqd-http-address={http}",
            "--retry",
            "--dry-run",
        ),
        start("to_nsq", "--topic=t", f"--nsqd-tcp-address={tcp}", "--retry"),
    ]
    for process in waiting:
        while "connection refused" not in process.stderr.readline():
            assert process.poll() is None
    tcp_port, http_port = (int(address.rpartition(":")[2]) for address in (tcp, http))
    with Nsqd(installed_nsqd(), tmp_path, tcp_port=tcp_port, http_port=http_port):
        for process in waiting:
            _, log = process.communicate("two\n" if "to_nsq" in process.args[0] else None, timeout=60)
            assert process.returncode == 0, log
    assert "published 1 record to topic t\n" in log


def test_a_dead_nsqlookupd_is_reported_in_one_line_and_an_unknown_topic_too(start, lookupd, nsqd):
    flags = [f"--lookupd-http-address={each}" for each in ("127.0.0.1:1", lookupd.http_address, nsqd.http_address)]
    tail = start("nsq_tail", "--topic=nowhere", *flags)
    wanted = {
        "[nowhere] nsqlookupd 127.0.0.1:1: connection refused",
        f"[nowhere] nsqlookupd {lookupd.http_address}: no nsqd has this topic yet, asking again",
        f"[nowhere] nsqlookupd {nsqd.http_address}: got status 404; is this nsqlookupd's HTTP address?",
    }
    assert tail.stderr.readline() == "Adding consumer for topic: nowhere\n"
    assert {tail.stderr.readline()[24:].rstrip() for _ in wanted} == wanted
    tail.terminate()
    assert (tail.wait(timeout=60), tail.stderr.read()) == (0, "")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("nsq_stat --topic={topic} --channel=c --nsqd-http-address={http} >/dev/full", "no space left on device"),
        ("nsq_tail --topic={topic} --channel=c --nsqd-tcp-address={tcp} >/dev/full", "no space left on device"),
        ("nsq_tail --topic={topic} --channel=c --nsqd-tcp-address={tcp} >&-", "standard output is closed"),
        ("to_nsq --topic={topic} --nsqd-tcp-address={tcp} <&-", "standard input is closed"),
        ("to_nsq --topic={topic} --nsqd-tcp-address={tcp} </", "is a directory"),
    ],
)
def test_a_standard_stream_that_fails_is_reported_without_a_stack(nsqd, topic, publish, command, text):
    publish(b"1")
    line = command.format(topic=topic, tcp=nsqd.tcp_address, http=nsqd.http_address)
    program = Path(sys.executable).with_name(line.split()[0])
    done = subprocess.run(f"exec {program.parent}/{line}", shell=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert text in done.stderr.decode()
    assert b"Traceback" not in done.stderr
