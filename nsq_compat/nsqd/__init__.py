"""The program ``nsqd``: options, wiring, and the order in which it starts and stops.

    main            reads the command line, runs the daemon, and exits
    options         the table of its options
    startup         creates parts from options; policies in the config file; --check-config; restores the data path
    daemon          queue, listeners, start and stop; drains; the daemon as its HTTP API sees it
    durability      background writes: group commit, checkpoints, nsqd.dat, dead letters
    lookup_peers    registers with every nsqlookupd, and asks them for the channels of a new topic
    http_calls      HTTP requests to other servers, in threads; auth servers
    statsd          statistics pushed to statsd
    mirror          sends every change of the files to a standby
    standby         keeps copies for other nsqds, and takes over their topics

May import everything below. The parts that are tested by themselves are in lower layers; this folder is tested
as a process.

Read ``daemon`` first.
"""
