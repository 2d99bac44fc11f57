"""A daemon's own process: asked to stop, and looked at."""

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from nsq_compat.net.process import Process, first_of, tune_gc

_STOPS_WHEN_ASKED = """
import gevent
from nsq_compat.net.process import stop_signal
stop = stop_signal()
gevent.spawn(gevent.sleep, 60)  # gevent ends a loop with nothing in it
gevent.sleep(0)
assert not stop.is_set()
print(flush=True)
stop.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop_and_more_of_them_change_nothing_until_it_is_gone(number):
    with subprocess.Popen([sys.executable, "-c", _STOPS_WHEN_ASKED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(number)
    assert process.returncode == 0


def test_the_first_of_several_events_ends_the_wait():
    never, soon = Event(), Event()
    gevent.spawn(soon.set)
    first_of(never, soon)
    assert soon.is_set()


def test_others_run_while_one_sleeps():
    ran: list[str] = []
    gevent.spawn(ran.append, "other")
    Process().sleep(0)
    assert ran == ["other"]


def test_the_stacks_of_greenlets_name_what_they_do():
    def a_greenlet_of_this_test() -> None:
        gevent.sleep(60)

    greenlet = gevent.spawn(a_greenlet_of_this_test)
    gevent.sleep(0)
    assert "a_greenlet_of_this_test" in Process().greenlet_stacks()
    greenlet.kill()


@pytest.fixture
def collector() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("collector")
def test_the_collector_leaves_alone_what_is_there_at_the_start():
    tune_gc()
    assert gc.get_freeze_count() > 0
