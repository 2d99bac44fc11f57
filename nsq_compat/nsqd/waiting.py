"""What has to wait for the disk does so in a thread, while the event loop goes on."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it and return its result. Raises ``OSError`` as `work` does."""

    def outcome() -> T | OSError:
        # What a thread raises gevent prints with a traceback, though somebody is going to handle it.
        try:
            return work(*args, **kwargs)
        except OSError as error:
            return error

    result = gevent.get_hub().threadpool.apply(outcome)
    if isinstance(result, OSError):
        raise result
    return result
