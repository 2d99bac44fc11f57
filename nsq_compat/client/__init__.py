"""The client library: consumers and producers for any nsqd, with blocking sockets and threads.

    consumer        a subscription, handlers in threads producer        publishes to one nsqd or to several
    pynsq           pynsq's Reader, Writer and run      batching        publishing in the background
    message         a delivered message                 nodes           the order of nodes, results of a publish
    dedupe          handles each message once           memcached       de-duplication for many consumers
    log_reader      reads by offset, without a channel  aio             the same for programs on asyncio

    connection      a socket, two threads, a session    link            what both kinds of connections share
    coordinator     decisions of a consumer             discovery       the nsqd that nsqlookupd lists
    ready           RDY counts, backoff                 log_reading     requests and answers of a log reader
    settings        options                             publishing      the commands of a producer
    tracing         spans of OpenTelemetry, an extra

A pynsq program needs only ``import nsq_compat.client as nsq``. All waiting uses the standard library's sockets and
locks, so a program that monkey-patches with gevent gets greenlets; the client never imports gevent. ``aio`` waits on
the event loop instead.

May import ``bounded_http``, ``session`` and ``protocol``. Read ``consumer`` first, then ``connection``.
"""

from typing import TYPE_CHECKING

from nsq_compat.client.connection import Connection
from nsq_compat.client.consumer import Consumer
from nsq_compat.client.link import ConnectionLost
from nsq_compat.client.log_reader import LogReader
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
from nsq_compat.client.producer import Producer

if TYPE_CHECKING:
    from nsq_compat.client.pynsq import Reader, Writer, run

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
    "Reader",
    "Refused",
    "TooFewCopies",
    "Unknown",
    "Writer",
    "run",
]


def __getattr__(name: str) -> object:
    # Only these need asyncio, which takes 2 MB and 10 ms of the start of every other program.
    if name in ("Reader", "Writer", "run"):
        from nsq_compat.client import pynsq

        return getattr(pynsq, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
