"""Queries and actions on a cluster of nsqd and nsqlookupd daemons, over HTTP.

    cluster      queries (topics, nodes, stats) and actions (create, delete, pause, publish); snapshots; read this first
    http_client  requests: deadline, size limit, TLS; concurrent ones to many daemons
    reading      typed values out of untrusted JSON

    nodes        an nsqd, as nsqlookupd or its own /info describes it
    stats        topics, channels and clients, as /stats of a node describes them, and their sums over nodes
    mirroring    standbys, and the copies that they have
    sightings    states of nodes, also of those that are gone
    history      rates and depths over the last hour and day
    alerts       rules that find problems in a snapshot and its history
    peek         messages of a topic or channel, without delivering them; where one of them is
    topic_log    what is retained, messages by offset, rewinds

Answers are not trusted: a daemon may send wrong types, hang, or never stop sending. Each of these becomes an error with
that daemon's name.

May import ``bounded_http`` and ``protocol``; never gevent. Concurrency uses threads, which programs that use gevent
replace by greenlets.
"""
