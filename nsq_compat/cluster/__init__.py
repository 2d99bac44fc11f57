"""Queries and actions on a cluster of nsqd and nsqlookupd daemons, over HTTP.

    cluster      queries: topics, channels, nodes, producers, stats; read this first
    actions      create, delete, pause, unpause, empty, tombstone, publish
    http_client  one request to one daemon: deadline, size limit, TLS
    fan_out      concurrent requests to many daemons; a failure costs only its own answer
    reading      typed values out of untrusted JSON

    nodes        an nsqd, as nsqlookupd or its own /info describes it
    stats        topics, channels and clients, as /stats describes them
    snapshot     the whole cluster at one moment, added up over its nodes
    history      rates and depths over the last hour and day
    alerts       rules that find problems in a snapshot and its history
    peek         messages of a topic or channel, without delivering them

Answers are not trusted: a daemon may send wrong types, hang, or never stop sending. Each of these becomes an error with
that daemon's name.

May import ``bounded_http`` and ``protocol``; never gevent. Concurrency uses threads, which programs that use gevent
replace by greenlets.
"""
