"""A busy event loop is found out."""

import socket
import time
from typing import Any

import gevent
from gevent.event import Event
from gevent.queue import Queue

from nsq_compat.net.loop_lag import LoopLag


def test_a_loop_that_was_busy_is_late_by_as_much():
    lags: Queue[float] = Queue()
    watch = LoopLag(lags.put, interval=0.01)
    watch.start()
    assert lags.get(timeout=20) >= 0
    time.sleep(0.2)  # everybody waits for this
    assert max(lags.get(timeout=20), lags.get(timeout=20)) >= 0.1
    watch.stop()
    gevent.sleep(0)
    while not lags.empty():
        lags.get()
    gevent.sleep(0.05)
    assert lags.empty()


def test_cpu_time_that_kept_the_loop_is_told_apart_from_time_spent_waiting():
    helds: Queue[float] = Queue()
    watch = LoopLag(lambda late: None, helds.put, interval=0.01)
    watch.start()
    assert 0 <= helds.get(timeout=20) < 0.1
    time.sleep(0.2)  # late, but no CPU is used
    assert max(helds.get(timeout=20), helds.get(timeout=20)) < 0.1
    began = time.thread_time()
    while time.thread_time() - began < 0.2:
        pass
    assert max(helds.get(timeout=20), helds.get(timeout=20)) >= 0.15
    watch.stop()


def test_a_client_is_heard_before_what_need_not_be_done_at_once():
    order: list[str] = []
    here, there = socket.socketpair()
    readable: Any = gevent.get_hub().loop.io(here.fileno(), 1)

    def heard() -> None:
        order.append("client")
        readable.stop()

    looked = Event()

    def look(late: float) -> None:
        order.append("lag")
        looked.set()

    watch = LoopLag(look, interval=0.01)
    with here, there:
        readable.start(heard)
        watch.start()
        gevent.sleep(0)  # it has begun to wait
        there.send(b"x")
        time.sleep(0.05)  # both are due when the loop comes to them
        assert looked.wait(20)
        watch.stop()
        readable.close()
    assert order[:2] == ["client", "lag"]
