"""Programs for operators, each a module with a `main`.

    nsq_access      make, list and revoke the tokens of an access file
    nsq_data        check a data path, export it to Go's nsqd, salvage Go's bad files
    nsq_nodes       lay out several nsqd on one machine
    nsq_stat        a channel's statistics over all nodes, in intervals
    nsq_tail        print messages
    nsq_to_file/    write messages to files
    nsq_to_http     make an HTTP request for each message
    nsq_to_nsq      publish messages again at other nsqd
    nsq_redrive     publish dead letters again to their topic
    nsq_rewind      move a channel to a place of its topic's log
    nsq_replay      read a range of a topic's log, to standard output or to another topic
    to_nsq          publish records from standard input
    http_consumers/ nsq_pubsub and nsq_pull: messages for HTTP clients

    program         command line, error messages, signals and exit codes of every utility
    client_options  the flags for reading and publishing, --consumer-opt and --producer-opt
    destinations    the choice among several destinations
    channel_places  where a channel is, what a move would bring, --from
    progress        progress on a terminal, and --status-every

May import everything below; nothing imports it.

Read ``program`` first, then ``nsq_tail``.
"""
