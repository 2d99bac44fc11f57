"""To many daemons over HTTP: ask all of them at once, add up what they say, tell all of them what to do.

    cluster        what can be asked of a cluster; start here
    steering       what can be done to it
    http_client    one request to one daemon: deadline, size limit, TLS
    fan_out        many requests side by side; who failed is said, the others' answers stand
    nodes          an nsqd as nsqlookupd or its own /info describes it
    skipped        registrations that make no sense, logged once
    statistics     topics, channels and clients as one nsqd's /stats shows them
    latency        percentiles of processing time
    snapshot       the whole cluster at one moment;  history  what it was;  ages  its oldest messages
    attention      what wants attention in it
    peek           messages that wait in a channel
    merge          one topic or channel over all nodes
    reading        values out of JSON that may say anything

What a daemon answers is not trusted: it may lie about types, hang, or send without end. Whatever it does becomes the
error of that daemon, in words.

May import session, queue and protocol; never gevent. It asks side by side in threads: a program that has replaced
threads by greenlets gets greenlets.
"""
