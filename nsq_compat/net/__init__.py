"""Sockets and greenlets: the shells around sessions and HTTP applications. Below the programs, gevent is only here.

    tcp_server      accepts; one greenlet per client    http_server     HTTP/1.1 for machines, parsed by httptools
    connection      a socket and its session            http_message    requests and responses as values
    listeners       addresses to listening sockets      timers          the queue's alarms on the event loop

May import: ``session`` and below. Sockets are plain non-blocking ones and waiting is done with the event loop's
watchers: nothing is monkey-patched.

Read ``connection`` first.
"""
