"""The program ``nsqd``: options, wiring, and the order in which it starts and stops.

    main            command line in, exit code out
    options         the table of its options
    startup         makes parts from the options; policies in the config file; --check-config; restores the data path
    daemon          queue, listeners, start and stop; drains; the daemon as its HTTP API sees it
    durability      what is written in the background: group commit, checkpoints, nsqd.dat, dead letters
    lookup_peers    registration at every nsqlookupd; channels of a new topic, from them
    http_calls      HTTP requests to other servers, in threads; auth servers
    statsd          statistics pushed to statsd

May import everything below. The parts that are tested by themselves are in lower layers; this folder is tested
as a process.

Read ``daemon`` first.
"""
