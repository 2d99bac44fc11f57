"""The client library: consumers and producers for any nsqd, with blocking sockets and threads.

    consumer        handlers in threads                 producer        publishes to one nsqd or to several
    reader          pynsq's Reader                      writer          pynsq's Writer
    event_loop      the event loop of pynsq programs    batching        publishing in the background
    message         a delivered message                 nodes           the nodes of a producer
    dedupe          handles each message once           outcomes        results of a publish
    memcached       de-duplication for many consumers

    subscription    a topic and channel at several nsqd discovery       polls nsqlookupd
    connection      a socket, two threads, a session    ready           RDY counts, backoff
    tls             TLS, bytes to bytes                 settings        options

A pynsq program needs only ``import nsq_compat.client as nsq``. All waiting uses the standard library's sockets and
locks, so a program that monkey-patches with gevent gets greenlets; the client never imports gevent.

May import ``bounded_http``, ``session`` and ``protocol``. Read ``subscription`` first, then ``connection``.
"""

from nsq_compat.client.connection import Connection, ConnectionLost
from nsq_compat.client.consumer import Consumer
from nsq_compat.client.event_loop import run
from nsq_compat.client.message import AlreadyAnswered, Message
from nsq_compat.client.outcomes import (
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
from nsq_compat.client.reader import Reader
from nsq_compat.client.writer import Writer

__all__ = [
    "AlreadyAnswered",
    "Attempt",
    "Connection",
    "ConnectionLost",
    "Consumer",
    "Error",
    "Message",
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
