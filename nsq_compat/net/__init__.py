"""Sockets and greenlets: the shells around sessions. Below the programs, gevent is only here.

    acceptor        accepts clients                     listeners       addresses to listening sockets
    tcp_server      knows its connections               http_server     HTTP/1.1 for machines
    connection      a socket and its session            timers          the queue's alarms
    codec_stack     what lies between the two           certificates    files to TLS, again on SIGHUP
    tls             TLS, bytes to bytes                 tls_lenient     TLS that takes any client certificate
    tls_words       TLS as NSQ speaks of it             turn            what is done at its end
    supervisor      whoever started this process (systemd)
    loop_lag        how late the event loop is          vigil           whether it sleeps between two requests
    process         a daemon's own: asked to stop, looked at
    dialer          connects to another server          resolver        names to addresses
    descriptor_limit  descriptors left to files

May import: ``session`` and below. Sockets are plain non-blocking ones and waiting is done with the event loop's
watchers: nothing is monkey-patched.

Read ``connection`` first.
"""
