"""The client library for asyncio: consumers and producers on the running event loop, without threads.

    consumer        a subscription: handlers that are coroutines, or ``async for``
    producer        publishes to one nsqd or to several; calls share a connection
    log_reader      reads by offset, without a channel
    connection      a protocol of asyncio with a session on it
    http            bounded requests to nsqlookupd and nsqd

Decisions, options, messages and errors are those of the client in threads: ``coordinator``, ``ready``, ``nodes``,
``settings``, ``message``, ``tracing``. Everything here is used on the thread of its event loop.

Read ``consumer`` first, then ``connection``.
"""

from nsq_compat.client.aio.connection import Connection
from nsq_compat.client.aio.consumer import Consumer
from nsq_compat.client.aio.log_reader import LogReader
from nsq_compat.client.aio.producer import Producer
from nsq_compat.client.link import ConnectionLost
from nsq_compat.client.log_reading import Gap, LoggedMessage, LogReadError, OffsetGone
from nsq_compat.client.message import AlreadyAnswered, Message
from nsq_compat.client.nodes import (
    Attempt,
    Error,
    Outcome,
    Published,
    PublishError,
    Refused,
    TooFewCopies,
    Unknown,
)

__all__ = [
    "AlreadyAnswered",
    "Attempt",
    "Connection",
    "ConnectionLost",
    "Consumer",
    "Error",
    "Gap",
    "LogReadError",
    "LogReader",
    "LoggedMessage",
    "Message",
    "OffsetGone",
    "Outcome",
    "Producer",
    "PublishError",
    "Published",
    "Refused",
    "TooFewCopies",
    "Unknown",
]
