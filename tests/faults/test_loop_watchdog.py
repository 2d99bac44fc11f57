"""The watchdog, which fails a fault test if an event loop was blocked too long."""

import time

import gevent

from tests.faults.daemon import Daemon, wait_until
from tests.faults.watched_nsqd import LoopWatchdog, watched_nsqd


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_one_long_piece_of_work_is_reported_with_its_place():
    reports: list[tuple[float, str]] = []
    watchdog = LoopWatchdog(lambda held, stack: reports.append((held, stack)), limit=0.1)
    watchdog.start()
    gevent.sleep(0.01)
    spin(0.3)
    gevent.sleep(0.01)
    watchdog.stop()
    [(held, stack)] = reports
    assert held >= 0.3
    assert "spin" in stack


def test_as_much_work_in_pieces_is_not_reported_nor_is_waiting():
    reports: list[float] = []
    watchdog = LoopWatchdog(lambda held, stack: reports.append(held), limit=0.1)
    watchdog.start()
    for _ in range(30):
        spin(0.01)
        gevent.sleep(0.001)
    time.sleep(0.3)
    gevent.sleep(0.01)
    watchdog.stop()
    assert reports == []
    assert watchdog.iterations >= 30
    assert 0.01 <= watchdog.longest < 0.1


def test_a_live_nsqd_that_is_held_says_so(tmp_path):
    script = (
        "import gevent; from tests.faults import test_loop_watchdog, watched_nsqd;"
        "gevent.spawn_later(1, test_loop_watchdog.spin, 0.3); watched_nsqd.run()"
    )
    with Daemon(tmp_path, command=watched_nsqd("-c", script)) as daemon:
        wait_until(lambda: bool(daemon.held), within=30)
        assert "spin" in daemon.held[0]
