"""Where one message is: waiting, deferred or in flight in a channel, or no longer there. For an operator, over HTTP.

It is derived from what the queue has at the moment. Only why a message came back last is recorded (``returns``), so one
that is handled at once costs nothing. There is no other history: of a message that has left a channel it is not known
how, and of earlier deliveries only their number.
"""

from typing import Final, NamedTuple

from nsq_compat.log.offsets import Logged
from nsq_compat.protocol.message import attempts
from nsq_compat.queue.backlog import Backlog, TooManyToSearch
from nsq_compat.queue.channel import Channel, Consumer
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.returns import Return
from nsq_compat.queue.schedule import NEVER

WAITING: Final = "waiting"
DEFERRED: Final = "deferred"
IN_FLIGHT: Final = "in_flight"
DEAD_LETTERING: Final = "dead_lettering"
"""On its way to the dead-letter topic, which does not have it yet."""
GONE: Final = "gone"
"""Not there. It was finished, or left the channel otherwise, or never was for it."""
UNKNOWN: Final = "unknown"
"""It may be among too many messages to search."""


class MessageState(NamedTuple):
    """Times are monotonic seconds, ``NEVER`` if there is none."""

    state: str
    attempts: int = 0
    """Of the delivery, or of the next one if it is waiting or deferred."""
    since: float = NEVER
    """When it was delivered."""
    until: float = NEVER
    """When it times out, or is due."""
    consumer: Consumer | None = None
    """None if it has left the channel."""
    returned: Return | None = None
    """Why it came back last, if that is known."""


def state_in_channel(channel: Channel, message_id: bytes, logged: Logged | None) -> MessageState:
    """The state in a channel of a message that has this place in the log."""
    return _state_in(channel, message_id, logged)._replace(returned=channel.returns.of(message_id))


def _state_in(channel: Channel, message_id: bytes, logged: Logged | None) -> MessageState:
    for consumer in channel.consumers:
        if message_id in consumer.in_flight.frames:
            return _in_flight(consumer.in_flight, message_id, consumer)
    dying = channel.dead_letters.in_flight.frames if channel.dead_letters is not None else {}
    if message_id in dying:
        return MessageState(DEAD_LETTERING, attempts(dying[message_id]))
    if message_id in channel.departed.frames:
        return _in_flight(channel.departed, message_id, None)
    return state_in_backlog(channel.backlog, message_id, logged)


def state_in_backlog(backlog: Backlog, message_id: bytes, logged: Logged | None) -> MessageState:
    """The state among the messages that are to be delivered, in a channel or while the topic holds them."""
    try:
        found = backlog.find(message_id, logged)
    except TooManyToSearch:
        return MessageState(UNKNOWN)
    if found is None:
        return MessageState(GONE)
    due, attempt = found
    return MessageState(DEFERRED, attempt, until=due) if due else MessageState(WAITING, attempt)


def _in_flight(in_flight: InFlight, message_id: bytes, consumer: Consumer | None) -> MessageState:
    delivery = in_flight.delivery_of(message_id)
    since, until = (NEVER, NEVER) if delivery is None else (delivery.delivered, delivery.deadline)
    return MessageState(IN_FLIGHT, attempts(in_flight.frames[message_id]), since, until, consumer)
