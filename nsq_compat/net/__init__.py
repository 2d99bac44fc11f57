"""Sockets and greenlets around the sessions. Below the programs, only this folder uses gevent.

    server        listening, accepting, the connections of a server and its stop
    connection    one socket and its session
    loop_tick     work at the end of an event-loop iteration, alarms, the loop's lag
    busy_poll     polling instead of sleeping between two requests of one client
    long_work     long work in steps, with other connections in between
    listeners     addresses to listening sockets
    dialer        connecting to another server, and resolving its name
    tls           TLS as a codec, NSQ's names for it
    tls_lenient   TLS that accepts any client certificate, by pyOpenSSL
    certificates  certificate files to TLS, again on SIGHUP
    process       the daemon's own process: signals, descriptors, systemd

May import: ``session`` and below. Sockets are plain non-blocking ones, and waiting uses the event loop's watchers:
nothing is monkey-patched.

Read ``connection`` first.
"""
