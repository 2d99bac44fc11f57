"""Programs for operators, each a module with a `main`.

    nsq_data        what a data path holds: check it, export it to Go's nsqd, salvage what was given up
    data_check      what `nsq_data check` finds out, and how it says so
    nsq_stat        a channel's figures over all nodes, again and again
    nsq_pubsub      topics as HTTP streams; what it answers: subscribing
    nsq_pull        a channel behind HTTP, message by message; what it answers: pulling
    nsq_tail        show messages as they come
    nsq_to_file     what is published, in files; its own modules are listed there
    nsq_to_http     a request for each message
    nsq_to_nsq      messages published again elsewhere
    nsq_redrive     dead letters published again where they came from
    to_nsq          publish what comes on standard input

    program         how they begin, complain and end
    http_door       HTTP for handing out messages: what of an answer has arrived, and whether anybody waits
    on_demand       messages taken from nsqd when somebody wants them
    client_options  where they read, --consumer-opt and --producer-opt
    lookupds        the cluster behind --lookupd-http-address
    destinations    which of several targets is next
    request_times   --status-every
    http_sending    a message to a URL
    json_filter     which JSON messages pass, and what of them
    progress        how far they have come, on a terminal

May import everything below; nothing imports it.
"""
