"""/debug: all profiles answer, and leave the process as it was."""

import signal
import sys
import threading

import pytest

from nsq_compat.session.http_message import Response
from nsq_compat.web import profiling


@pytest.mark.parametrize(
    ("path", "beginning"),
    [
        ("", b"<html>"),
        ("symbol", b"num_symbols: 0"),
        ("goroutine?debug=2", b"*"),
        ("block?debug=1", b"--- contention:"),
        ("threadcreate", b"threadcreate profile: total "),
        ("heap?debug=1", b"heap profile: "),
    ],
)
def test_profiles_are_text(call, path, beginning):
    response = call.get(f"/debug/pprof/{path}")
    assert response.status == 200
    assert response.body.startswith(beginning)
    assert ("X-Content-Type-Options", "nosniff") in response.headers


def test_the_command_line_is_separated_by_nul(call, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nsqd", "--x=1"])
    assert call.get("/debug/pprof/cmdline").body == b"nsqd\0--x=1"


def test_the_cpu_profile_has_stacks(call, monkeypatch):
    def use_cpu(seconds: float) -> None:
        sum(number * number for number in range(2_000_000))

    monkeypatch.setattr(profiling, "sleep", use_cpu)
    response = call.get("/debug/pprof/profile?seconds=0.1")
    assert response.status == 200
    lines = response.body.decode().splitlines()
    assert any("use_cpu" in line and line.rpartition(" ")[2].isdigit() for line in lines)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_second_cpu_profile_is_refused(call, monkeypatch):
    answers: list[Response] = []
    monkeypatch.setattr(profiling, "sleep", lambda *_: answers.append(call.get("/debug/pprof/profile")))
    call.get("/debug/pprof/profile")
    assert (answers[0].status, b"already in use" in answers[0].body) == (500, True)


def test_outside_the_main_thread_the_cpu_profile_is_refused(call):
    answers: list[Response] = []
    thread = threading.Thread(target=lambda: answers.append(call.get("/debug/pprof/profile?seconds=0.01")))
    thread.start()
    thread.join()
    assert answers[0].status == 500


@pytest.mark.parametrize("text", ["x", "-1", "nan", ""])
def test_invalid_seconds_are_thirty(call, monkeypatch, text):
    slept: list[float] = []
    monkeypatch.setattr(profiling, "sleep", lambda seconds: slept.append(seconds))
    call.get(f"/debug/pprof/profile?seconds={text}")
    assert slept == [30.0]


def test_the_block_rate_is_checked(call):
    assert call.put("/debug/setblockrate?rate=1").status == 200
    response = call.put('/debug/setblockrate?rate=x"')
    assert (response.status, response.body) == (
        400,
        b'invalid block rate : strconv.Atoi: parsing "x\\"": invalid syntax',
    )


def test_memory_is_freed_on_demand(call):
    response = call.post("/debug/freememory")
    assert (response.status, response.body, response.headers) == (200, b"", ())
