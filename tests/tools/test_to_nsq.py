"""What to_nsq does better than Go's, and how it cuts its input."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.tools.to_nsq import records
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd


@given(st.lists(st.binary(max_size=6)), st.sampled_from([b"\n", b",", b"\0"]))
def test_records_are_the_same_however_the_input_is_cut(pieces, delimiter):
    expected = [each for each in b"".join(pieces).split(delimiter) if each]
    source = iter([piece for piece in pieces if piece])
    assert list(records(lambda size: next(source, b""), delimiter)) == expected


@pytest.fixture
def nsqd(tmp_path):
    with Nsqd(installed_nsqd(), tmp_path, options=("--max-msg-size=10",)) as process:
        process.create_channel("t", "c")
        yield process


@pytest.fixture
def to_nsq(run, nsqd):
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    return lambda data, *more: run("to_nsq", *flags, *more, data=data)


def test_a_last_record_without_delimiter_is_published_whole(to_nsq, nsqd):
    done = to_nsq(b"abc\ndef")
    assert done.returncode == 0
    assert done.stderr.endswith(b" published 2 records to topic t\n")
    assert nsqd.stat("t", "depth") == 2


def test_the_first_refused_record_ends_it_with_its_number(to_nsq, nsqd):
    done = to_nsq(b"1\n2\nthis is too long\n4\n", "--rate=1000")
    assert done.returncode == 1
    assert b"record 3: " in done.stderr
    assert b"E_BAD_MESSAGE" in done.stderr
    assert done.stderr.endswith(b" (2 published before it)\n")


def test_many_records_are_all_published(to_nsq, nsqd):
    assert to_nsq(b"".join(b"%d\n" % number for number in range(20_000))).returncode == 0
    assert nsqd.stat("t", "depth") == 20_000


def test_only_input_needs_nsqd(run):
    assert run("to_nsq", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1").returncode == 0
    done = run("to_nsq", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", data=b"x\n")
    assert (done.returncode, b"127.0.0.1:1" in done.stderr) == (1, True)


def test_a_signal_ends_the_reading_and_read_records_are_published(nsqd):
    command = [str(Path(sys.executable).with_name("to_nsq")), "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf")
        process.stdin.flush()
        wait_until(lambda: nsqd.stat("t", "depth") == 2)
        process.terminate()
        assert process.wait(30) == 0
    assert nsqd.stat("t", "depth") == 3
