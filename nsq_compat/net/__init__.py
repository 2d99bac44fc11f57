"""Sockets and greenlets around the sessions. Below the programs, only this folder uses gevent.

    server        listening, accepting, the connections of a server and its stop
    connection    one socket and its session
    event_loop    work at the end of an iteration, alarms, the loop's lag, busy polling, long work in steps
    sockets       sockets for addresses: listening, connecting, resolving names
    resolver      names of hosts, for programs that connect to any number of them
    tls_codec     TLS as a codec
    tls           TLS with the standard library; NSQ's names of versions and suites
    tls_lenient   TLS that accepts any client certificate, with pyOpenSSL
    certificates  TLS from certificate files, which SIGHUP reads again
    process       the daemon's own process: signals, descriptors, systemd

May import: ``session`` and below. Sockets are plain non-blocking ones, and waiting uses the event loop's watchers:
nothing is monkey-patched.

Read ``connection`` first.
"""
