"""Staying awake: when the event loop looks instead of sleeping, and what that may take."""

import struct
from collections.abc import Callable

import gevent
import pytest

from nsq_compat.net.vigil import EARNED, MOMENT, PENALTY, Vigil
from tests.net.conftest import Client, Server

ENOUGH = round(MOMENT / EARNED + 1)
"""Requests that earn a moment, whatever is rounded."""


class Loop:
    """An event loop's idle watcher, and its clock."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.looks: Callable[[], None] | None = None

    def now(self) -> float:
        return self.time

    def start(self, callback) -> None:
        self.looks = callback

    def stop(self) -> None:
        self.looks = None

    def close(self) -> None:
        pass

    def idles(self, seconds: float) -> None:
        """Nothing happens for so long; the loop comes round every microsecond, unless it sleeps."""
        end = self.time + seconds
        while self.time < end:
            if self.looks is not None:
                self.looks()
            self.time += 1e-6


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def vigil(loop) -> Vigil:
    return Vigil(loop, loop.now, cpus=2)


def awake_after(vigil: Vigil, limit: int) -> int:
    """How many requests it takes, each coming when the loop had other things to do."""
    for count in range(limit):
        if vigil.awake:
            return count
        vigil.served()
    raise AssertionError(f"{limit} requests are not enough")


def test_some_requests_earn_the_first_moment(vigil):
    assert 1 < awake_after(vigil, 100) <= ENOUGH


def test_a_request_that_comes_in_time_keeps_it_awake(vigil, loop):
    awake_after(vigil, 100)
    for _ in range(1000):
        loop.idles(EARNED / 2)
        vigil.served()
        assert vigil.awake


def test_looking_takes_no_more_than_was_earned(vigil, loop):
    looked = 0.0
    for _ in range(10_000):
        before = loop.time
        loop.idles(MOMENT * 0.8)
        looked += loop.time - before if vigil.awake else 0.0
        vigil.served()
    assert 0.5 * EARNED < looked / 10_000 <= EARNED * 1.01


def test_a_moment_in_vain_is_not_tried_again_soon(vigil, loop):
    awake_after(vigil, 100)
    loop.idles(0.01)
    assert not vigil.awake
    assert awake_after(vigil, 1000) >= PENALTY / EARNED


def test_where_nothing_ever_comes_in_time_it_is_hardly_tried(vigil, loop):
    looked = 0.0
    for _ in range(2000):
        looked += MOMENT if vigil.awake else 0.0
        loop.idles(2 * MOMENT)
        vigil.served()
    assert looked / 2000 < EARNED / 5


def test_a_loop_that_always_has_something_to_do_pays_nothing(vigil):
    awake_after(vigil, 100)
    for _ in range(1000):
        vigil.served()
        assert vigil.awake


def test_on_a_single_cpu_it_sleeps_for_whoever_asks_next_needs_it(loop):
    vigil = Vigil(loop, loop.now, cpus=1)
    for _ in range(1000):
        vigil.served()
        assert not vigil.awake


def test_a_part_of_a_command_is_no_request(loop, vigil, eventually):
    server = Server(session_waits=False, vigil=vigil)
    client = Client(server.address).says(b"  V2").publishes(b"t", b"before")
    awake_after(vigil, 100)
    loop.idles(0.01)
    assert not vigil.awake
    (session,) = server.tcp.sessions
    client.says(b"PUB t\n" + struct.pack(">i", 100))
    for taken in range(1, 100):
        client.says(b"x")
        eventually(lambda taken=taken: session._reader._available == taken)
    client.says(b"x")
    assert client.frame().data == b"OK"
    assert not vigil.awake
    client.socket.close()
    server.stop()


# --- With patience ----------------------------------------------------------------------------------------------------

PATIENCE = 0.005


@pytest.fixture
def patient(loop) -> Vigil:
    return Vigil(loop, loop.now, cpus=1, patience=PATIENCE)


def test_a_patient_one_looks_from_the_first_request_on_also_on_a_single_cpu(patient):
    assert awake_after(patient, 2) == 1


def test_a_patient_one_looks_as_long_as_it_is_told_after_every_request(patient, loop):
    for pause in (0.3, 0.9, 0.9, 0.5, 0.99, 0.1):
        patient.served()
        loop.idles(PATIENCE * pause)
        assert patient.awake


def test_a_patient_one_sleeps_when_nobody_comes_and_the_next_request_wakes_it(patient, loop):
    for pause in (0.7, 1.2, 1.2, 0.7, 5.0):
        patient.served()
        assert patient.awake
        loop.idles(PATIENCE * pause)
        assert patient.awake == (pause < 1)


def test_a_patient_one_is_not_put_off_by_a_request_that_came_too_late_to_be_seen(patient, loop):
    patient.served()
    loop.idles(PATIENCE / 2)
    loop.time += PATIENCE  # something else took the loop's time
    patient.served()
    patient.served()
    assert patient.awake


@pytest.mark.parametrize("session_waits", [False, True])
def test_a_patient_one_hears_of_what_is_published_together_at_the_end_of_a_turn_too(loop, patient, session_waits):
    server = Server(session_waits=session_waits, vigil=patient)
    clients = [Client(server.address).says(b"  V2").publishes(b"t", b"x") for _ in range(2)]
    for _ in range(3):
        loop.idles(2 * PATIENCE)
        assert not patient.awake
        clients.reverse()  # who was not the last to publish waits for others who may
        clients[0].publishes(b"t", b"x")
        assert patient.awake
    for client in clients:
        client.socket.close()
    server.stop()


def test_a_real_event_loop_goes_to_sleep_when_nobody_comes():
    vigil = Vigil(cpus=2)
    awake_after(vigil, 100)
    with gevent.Timeout(20):
        while vigil.awake:
            gevent.sleep(0.001)
    vigil.stop()


def test_who_stops_looking_for_good_is_not_awake(vigil, loop):
    awake_after(vigil, 100)
    vigil.stop()
    assert not vigil.awake
    assert loop.looks is None
