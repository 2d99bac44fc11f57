"""The client library: consumers and producers for any nsqd, on plain sockets and threads.

    consumer        handlers in threads                 producer        publish to one nsqd or to several at once
    reader          pynsq's Reader                      writer          pynsq's Writer
    event_loop      where a pynsq program runs          batching        publishing in the background
    handling        a handler's outcome to an answer    outcomes        sent, refused or unknown
    message         what a handler is given             nodes           the nsqd to choose from

    subscription    a topic and channel, read from several nsqd
    discovery       nsqlookupd polled                   ready           max_in_flight shared out
    backoff         slower when handling fails          connection      a socket, two threads and a session
    settings        options of a connection             tls             TLS, bytes to bytes
    options         keyword arguments to settings
    dedupe          handling once what comes again      memcached       the same, shared by many consumers

A pynsq program needs ``import nsq_compat.client as nsq`` and no more. Everything waits on the standard library's
sockets and locks, so a program that monkey-patches itself with gevent first gets greenlets; gevent is never imported.

May import: ``session`` and ``protocol``. Read ``subscription`` first, then ``connection``.
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
