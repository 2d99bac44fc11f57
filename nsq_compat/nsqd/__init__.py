"""The program ``nsqd``: options, wiring, and the order in which it starts and stops.

    main        command line in, exit code out      service     the daemon as its HTTP API sees it
    options     the table of its options            memory      the memory figures of /stats
    daemon      queue, listeners, start and stop    restoring   what the data path holds, brought back
    checkpoints where channels stand, written       committer   one disk sync for many publishers
    metadata    nsqd.dat, kept up to date           tls         TLS from the options
    waiting     for the disk, in a thread           statsd      figures of /stats, pushed
    http_calls  to other servers, in threads        lookup_peers  registered with every nsqlookupd
    drain       gives away what it has, takes no more
    topic_channels  of a new topic, asked of nsqlookupd
    auth        what auth servers say of clients    check       --check-config
    policy_file policies in the config file         dead_letter_sender  sends what was tried often enough

May import everything below. What is worth testing by itself sits on a lower floor; this one is tested as a process.

Read ``daemon`` first.
"""
