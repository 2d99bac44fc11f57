"""The program ``nsqd``: options, wiring, and the order in which it starts and stops.

    main            command line in, exit code out
    options         the table of its options
    startup         parts made of options, --check-config, restoring the data path
    daemon          queue, listeners, start and stop
    service         the daemon as its HTTP API sees it
    durability      group commit and checkpoints
    metadata        nsqd.dat, kept up to date
    policies        policies in the config file; sending dead letters
    drain           empty this node and stop
    lookup_peers    registration at every nsqlookupd
    topic_channels  channels of a new topic, from nsqlookupd
    auth            authorization by auth servers
    http_calls      HTTP requests to other servers, in threads
    statsd          statistics pushed to statsd
    memory          memory statistics, and the garbage collector

May import everything below. Code that is worth testing by itself is on a lower floor; this one is tested as a process.

Read ``daemon`` first.
"""
