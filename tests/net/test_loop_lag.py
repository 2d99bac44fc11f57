"""A busy event loop is found out."""

import time

import gevent
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
