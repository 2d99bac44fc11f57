"""Names of hosts, for programs on gevent that connect to any number of them.

gevent resolves names, and even IP addresses, in ten threads. A program that registers names whose servers do not answer
takes up all of them, for ten seconds or more with each, and no other host can be reached.
"""

import _socket
from typing import Any, Final

import gevent
from gevent.event import AsyncResult
from gevent.resolver.thread import Resolver as ThreadResolver
from gevent.threadpool import ThreadPool

MAX_NAMES: Final = 512
"""That are resolved at once, in a thread each; more than an address may register with a limit of connections."""
_IDLE_SECONDS: Final = 10


class _Pool(ThreadPool):
    def adjust(self) -> None:
        """Without a limit of the system's that is lower, each call has a thread; otherwise it waits for one."""
        try:
            super().adjust()
        except RuntimeError:  # gevent would count the call for ever, and start no thread for others
            if not self.size:
                raise


class Resolver(ThreadResolver):
    """IP addresses need no thread, and a name needs one thread however many ask for it."""

    def __init__(self) -> None:
        super().__init__(gevent.get_hub())
        self.pool = _Pool(MAX_NAMES, idle_task_timeout=_IDLE_SECONDS)
        self._asked: dict[tuple[Any, ...], AsyncResult[Any]] = {}

    def getaddrinfo(self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        try:
            return _socket.getaddrinfo(host, port, family, type, proto, flags | _socket.AI_NUMERICHOST)
        except _socket.gaierror:
            pass
        question = (host, port, family, type, proto, flags)
        answer = self._asked.get(question)
        if answer is None:
            answer = self._asked[question] = AsyncResult()
            gevent.spawn(self._ask, question, answer)  # the greenlet that asks first may be killed
        found: Any = answer.get()
        return found

    def _ask(self, question: tuple[Any, ...], answer: "AsyncResult[Any]") -> None:
        try:
            answer.set(self.pool.apply(_socket.getaddrinfo, question))
        except Exception as error:
            answer.set_exception(error)
        finally:
            del self._asked[question]


def install() -> None:
    """Let all of this program's sockets use it."""
    hub: Any = gevent.get_hub()
    hub.resolver = Resolver()
