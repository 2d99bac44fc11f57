"""Staying awake: when the event loop looks instead of sleeping, and what that may take."""

import itertools
import math
import struct
from collections.abc import Callable

import gevent
import pytest

from nsq_compat.net.vigil import ALLOWED, MOMENT, MOST, MOST_SLEPT_FOR, SAMPLE, TERM, Vigil
from tests.net.conftest import Client, Server

WORK, WAKING = 20e-6, 30e-6
"""Seconds of CPU for a request, and for being woken."""
ASLEEP = WORK + WAKING
LITTLE = 1e-6
"""The same of requests so small that many are to be slept for before it may look."""


class Loop:
    """An event loop's idle watcher, its clock, and its thread's CPU clock."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.taken = 0.5
        self.due = self.time  # when the next request comes that comes at its own time
        self.looks: Callable[[], None] | None = None

    def now(self) -> float:
        return self.time

    def cpu_time(self) -> float:
        return self.taken

    def start(self, callback) -> None:
        self.looks = callback

    def stop(self) -> None:
        self.looks = None

    def close(self) -> None:
        pass

    def works(self, seconds: float) -> None:
        self.time += seconds
        self.taken += seconds

    def idles(self, seconds: float) -> None:
        """Nothing happens for so long; the loop comes round every microsecond, unless it sleeps."""
        end = self.time + seconds
        while self.time < end and self.looks is not None:
            self.looks()
            self.works(min(1e-6, end - self.time))
        self.time = max(self.time, end)

    def serves(self, vigil: Vigil) -> bool:
        """A request has come. Whether it found it awake."""
        found = vigil.awake
        self.works(WORK if found else ASLEEP)
        vigil.served()
        return found

    def answers(self, vigil: Vigil, requests: int, pause: float) -> int:
        """To who awaits each answer, and asks so long after it. How many requests found it awake."""
        found = 0
        for _ in range(requests):
            self.idles(pause)
            found += self.serves(vigil)
        return found

    def hears(self, vigil: Vigil, requests: int, gap: float) -> int:
        """Requests that come at their own times. How many found it awake."""
        found = 0
        for _ in range(requests):
            self.idles(self.due - self.time)
            self.due += gap
            found += self.serves(vigil)
        return found


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def vigil(loop) -> Vigil:
    return Vigil(loop, loop.now, loop.cpu_time, cpus=2)


def wake(vigil: Vigil, loop: Loop, limit: int = 10 * SAMPLE, taking: float = ASLEEP) -> int:
    """How many requests it takes, each coming when the loop had other things to do."""
    for count in range(limit):
        if vigil.awake:
            return count
        loop.works(taking)
        vigil.served()
    raise AssertionError(f"{limit} requests are not enough")


def sleeps_for(vigil: Vigil, loop: Loop, gap: float) -> int:
    """How many requests that come at their own times are slept for before it looks; then it may look until it ends."""
    count = 0
    while loop.looks is None:
        loop.hears(vigil, 1, gap)
        count += 1
    while vigil.awake:
        loop.hears(vigil, 1, gap)
    return count


def test_first_it_learns_what_sleeping_takes(vigil, loop):
    assert wake(vigil, loop) == SAMPLE
    assert (ALLOWED - 1) * SAMPLE * ASLEEP > MOMENT


def test_it_looks_when_it_has_saved_a_moment(vigil, loop):
    a_sample_saves = (ALLOWED - 1) * SAMPLE * LITTLE
    assert wake(vigil, loop, taking=LITTLE) == math.ceil(MOMENT / a_sample_saves) * SAMPLE > SAMPLE


def test_who_asks_again_in_time_finds_it_awake(vigil, loop):
    wake(vigil, loop)
    assert loop.answers(vigil, 1000, pause=WAKING / 2) == 1000


@pytest.mark.parametrize("pause", [WAKING, 1.3 * WAKING, 1.8 * WAKING])
def test_where_looking_takes_more_than_is_allowed_it_is_shared_out(vigil, loop, pause):
    before = loop.taken
    found = loop.answers(vigil, 30_000, pause)
    assert 0 < found < 30_000
    assert (loop.taken - before) / 30_000 == pytest.approx(min(ALLOWED * ASLEEP, WORK + pause), rel=0.01)


@pytest.mark.parametrize("gap", [1.5 * ASLEEP, 2 * ASLEEP, 2 * MOMENT, 10 * MOMENT])
def test_requests_that_come_at_their_own_times_are_slept_for(vigil, loop, gap):
    before = loop.taken
    found = loop.hears(vigil, 50_000, gap)
    assert found < 0.03 * 50_000
    assert (found > 0) == (gap - WORK < MOMENT)
    assert (loop.taken - before) / 50_000 < 1.02 * ASLEEP


def test_who_did_not_come_sooner_is_looked_out_for_half_as_often_each_time_down_to_a_bound(vigil, loop):
    slept = [sleeps_for(vigil, loop, 2 * ASLEEP) for _ in range(8)]
    assert slept == [min(SAMPLE << tries, MOST_SLEPT_FOR) for tries in range(8)]
    assert slept[-1] == slept[-2]


def test_who_comes_sooner_again_is_looked_out_for_again(vigil, loop):
    for _ in range(8):
        sleeps_for(vigil, loop, 2 * ASLEEP)
    pause = 1.3 * WAKING
    assert loop.answers(vigil, MOST_SLEPT_FOR, pause) == 0
    requests = 5 * MOST_SLEPT_FOR
    assert loop.answers(vigil, requests, pause) > requests / 2


def test_what_sleeping_takes_is_learned_again_each_term(vigil, loop):
    pause = WAKING / 2
    a_term = round(TERM / (WORK + pause))
    wake(vigil, loop)
    found = loop.answers(vigil, 2 * a_term + SAMPLE, pause)
    assert found == pytest.approx(2 * a_term - SAMPLE, abs=SAMPLE)
    assert found < 2 * a_term + SAMPLE


def test_a_request_that_comes_late_is_slept_for_and_no_other(vigil, loop):
    wake(vigil, loop)
    loop.answers(vigil, 1000, pause=0.0)
    before = loop.taken
    assert loop.answers(vigil, 1, pause=10 * MOMENT) == 0
    assert loop.taken - before == pytest.approx(MOMENT + ASLEEP, abs=3e-6)
    assert loop.answers(vigil, 1000, pause=0.0) == 1000


def test_who_is_late_now_and_then_is_looked_out_for_all_the_same(vigil, loop):
    found = late = 0
    while loop.time < 1000.0 + 3.1 * TERM:
        found += loop.answers(vigil, 4, pause=0.0)
        loop.answers(vigil, 1, pause=1.01 * MOMENT)
        late += 1
    terms = 3
    assert 4 * late - found == pytest.approx((1 + terms) * SAMPLE * 4 / 5, abs=10)


def test_a_moment_in_vain_is_paid_for(vigil, loop):
    wake(vigil, loop)
    loop.answers(vigil, 1000, pause=0.0)
    pause, affordable = 2 * MOMENT, MOST / MOMENT
    moments = 0
    while loop.looks is not None:
        loop.answers(vigil, 1, pause)
        moments += 1
    assert moments == pytest.approx(affordable, abs=2)


def test_what_the_loop_had_else_to_do_is_not_held_against_it_for_long(vigil, loop):
    wake(vigil, loop)
    loop.works(10.0)
    vigil.served()
    assert not vigil.awake
    assert wake(vigil, loop) == 2 * SAMPLE


def test_what_a_long_good_time_has_saved_is_soon_spent(vigil, loop):
    wake(vigil, loop)
    loop.answers(vigil, 1000, pause=0.0)
    pause = 0.8 * MOMENT
    more_than_allowed = WORK + pause - ALLOWED * ASLEEP
    requests = 0
    while vigil.awake:
        requests += loop.answers(vigil, 1, pause)
    assert requests == pytest.approx(MOST / more_than_allowed, abs=3)


def test_a_loop_that_always_has_something_to_do_stays_awake(vigil, loop):
    wake(vigil, loop)
    assert loop.answers(vigil, 1000, pause=0.0) == 1000


def test_on_a_single_cpu_it_sleeps_for_whoever_asks_next_needs_it(loop):
    vigil = Vigil(loop, loop.now, loop.cpu_time, cpus=1)
    assert loop.answers(vigil, 1000, pause=0.0) == 0


def test_a_part_of_a_command_is_no_request(loop, eventually):
    vigil = Vigil(loop, loop.now, cpu_time=itertools.count(1.0).__next__, cpus=2)  # a single sample is enough
    server = Server(session_waits=False, vigil=vigil)
    client = Client(server.address).says(b"  V2").publishes(b"t", b"before")
    (session,) = server.tcp.sessions
    parts = 2 * SAMPLE
    client.says(b"PUB t\n" + struct.pack(">i", parts))
    for taken in range(1, parts):
        client.says(b"x")
        eventually(lambda taken=taken: session._reader._available == taken)
    client.says(b"x")
    assert client.frame().data == b"OK"
    assert not vigil.awake
    for _ in range(SAMPLE):
        client.publishes(b"t", b"whole")
    eventually(lambda: vigil.awake)
    client.socket.close()
    server.stop()


# --- With patience ----------------------------------------------------------------------------------------------------

PATIENCE = 0.005


@pytest.fixture
def patient(loop) -> Vigil:
    return Vigil(loop, loop.now, loop.cpu_time, cpus=1, patience=PATIENCE)


def test_a_patient_one_looks_from_the_first_request_on_also_on_a_single_cpu(patient, loop):
    assert wake(patient, loop, 2) == 1


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
    wake(vigil, Loop(), limit=1_000_000)
    with gevent.Timeout(20):
        while vigil.awake:
            gevent.sleep(0.001)
    vigil.stop()


def test_who_stops_looking_for_good_is_not_awake(vigil, loop):
    wake(vigil, loop)
    vigil.stop()
    assert loop.answers(vigil, 10 * SAMPLE, pause=0.0) == 0
    assert loop.looks is None
