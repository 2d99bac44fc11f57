"""The limits of requests that are answered at the same time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import gevent
import gevent.event
import pytest

from nsq_compat.web.admin import request_queue
from nsq_compat.web.admin.request_queue import (
    MAX_OF_ALL,
    MAX_OF_USER,
    MAX_WAITING,
    ClientIsGone,
    Requester,
    RequestQueue,
    TooMany,
)

ADA, VIC = Requester("ada", MAX_OF_USER), Requester("vic", MAX_OF_USER)


class Waiting:
    """A request in a thread of its own."""

    def __init__(self, queue: RequestQueue, visitor: Requester, *, is_gone: bool = False) -> None:
        self._queue, self.visitor, self._is_gone = queue, visitor, is_gone
        self.outcome: bool | Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._enter, daemon=True)
        self._thread.start()

    def _enter(self) -> None:
        try:
            self.outcome = self._queue.enter(self.visitor, lambda: self._is_gone)
        except (TooMany, ClientIsGone) as failure:
            self.outcome = failure
        self._ended.set()

    @property
    def waits(self) -> bool:
        return not self._ended.is_set()

    def end(self) -> object:
        assert self._ended.wait(20)
        return self.outcome


@contextmanager
def waiting(queue: RequestQueue, *visitors: Requester, is_gone: bool = False) -> Iterator[list[Waiting]]:
    """Requests that wait in this order."""
    requests: list[Waiting] = []
    deadline = time.monotonic() + 20
    for visitor in visitors:
        wanted = queue.waiting + 1
        requests.append(Waiting(queue, visitor, is_gone=is_gone))
        while queue.waiting < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    yield requests


def test_a_visitor_has_a_few_requests_answered_at_once_and_others_do_not_wait_for_it():
    queue = RequestQueue()
    assert [queue.enter(ADA) for _ in range(MAX_OF_USER)] == [False] * MAX_OF_USER
    with waiting(queue, ADA) as (further,):
        assert queue.enter(VIC) is False
        queue.leave(VIC)
        assert further.waits
        queue.leave(ADA)
        assert further.end() is True


def test_visitors_whose_requests_wait_take_turns():
    queue = RequestQueue()
    for number in range(MAX_OF_ALL):
        queue.enter(Requester(f"visitor {number}", 1))
    with waiting(queue, ADA, ADA, VIC) as (first, second, third):
        queue.leave(Requester("visitor 0", 1))
        first.end()
        queue.leave(Requester("visitor 1", 1))
        third.end()
        assert second.waits
        queue.leave(Requester("visitor 2", 1))
        second.end()


def test_a_visitor_with_too_many_waiting_requests_is_refused(monkeypatch):
    monkeypatch.setattr("nsq_compat.web.admin.request_queue.MAX_WAITING", 2)
    assert MAX_WAITING > 2
    queue = RequestQueue()
    for _ in range(MAX_OF_USER):
        queue.enter(ADA)
    with waiting(queue, ADA, ADA) as requests:
        with pytest.raises(TooMany):
            queue.enter(ADA)
        for request in requests:
            queue.leave(ADA)
            assert request.end() is True


def test_a_request_of_a_client_that_has_gone_makes_room_for_the_next():
    queue = RequestQueue()
    for _ in range(MAX_OF_USER):
        queue.enter(ADA)
    with waiting(queue, ADA, ADA, is_gone=True) as gone, waiting(queue, ADA) as (last,):
        queue.leave(ADA)
        assert [type(each.end()) for each in gone] == [ClientIsGone, ClientIsGone]
        assert last.end() is True
    for _ in range(MAX_OF_USER):
        queue.leave(ADA)
    assert [queue.enter(ADA) for _ in range(MAX_OF_USER)] == [False] * MAX_OF_USER


def test_a_request_that_is_ended_while_it_waits_leaves_the_queue():
    class Turn:
        """Waits as an event does in nsqadmin, where greenlets are threads."""

        def __init__(self) -> None:
            self._event = gevent.event.Event()
            self.wait, self.set = self._event.wait, self._event.set

    queue = RequestQueue()
    for _ in range(MAX_OF_USER):
        queue.enter(ADA)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_queue, "threading", SimpleNamespace(Event=Turn))
        killed, last = (gevent.spawn(queue.enter, ADA) for _ in range(2))
        gevent.sleep(0)
        assert queue.waiting == 2
        killed.kill()
        assert queue.waiting == 1
        queue.leave(ADA)
        assert last.get(timeout=20) is True
