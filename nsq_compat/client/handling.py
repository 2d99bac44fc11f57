"""What becomes of a message: the handler is called, and its outcome is the answer nsqd gets.

attempts above max_tries      `giving_up`, then FIN
returns                       FIN; REQ if it returned False
raises                        logged with traceback; REQ with a delay that grows with the attempts
has answered itself           nothing more
called ``enable_async``       nothing now; somebody answers later
"""

import logging
from collections.abc import Callable

from nsq_compat.client.message import Message

log = logging.getLogger(__name__)

Handler = Callable[[Message], object]


def log_giving_up(message: Message) -> None:
    log.warning("msg %s attempted %d times, giving up", message.id.decode("ascii", "replace"), message.attempts)


def settle(message: Message, succeeded: bool) -> None:
    """Answer for a handler that has returned, unless it did so itself or will."""
    if not message.is_answered and not message.waits:
        if succeeded:
            message.finish()
        else:
            message.requeue()


def failed(message: Message, error: BaseException) -> None:
    """Answer for a handler that has raised."""
    log.error("handling of message %s failed", message.id.decode("ascii", "replace"), exc_info=error)
    if not message.is_answered:
        message.requeue()
