"""HTTP APIs of the daemons: requests and responses as values, without sockets.

    application      queries, responses, routes, errors and access log, common to all APIs; read this first

    access           tokens of requests
    hosts            names under which a daemon answers, against DNS rebinding

    nsqd_api         nsqd's routes
    nsqd_service     the interface that the daemon provides to the API
    publishing       /pub, /mpub
    consuming        /channel/consume, /message/...
    administration   /topic/..., /channel/..., /client/close, /config
    mirroring        /mirror, /mirror/adopt
    topic_log        /topic/offsets, /topic/read, /channel/rewind
    message_state    /topic/message
    stats            /ping, /info, /stats
    nsqd_metrics     nsqd's metrics for Prometheus

    nsqlookupd_api   nsqlookupd's routes, answers and metrics

    metrics          /metrics, /livez, /readyz of every daemon
    profiling        /debug
    admin/           nsqadmin's pages and API

May import ``session``, ``policy``, ``queue``, ``registry`` and ``protocol``; `admin` also ``cluster``. Must not import
gevent: from ``net`` only `yield_to_loop` and `ClientLocks`, for long work, and `process`, for the stacks in /debug.
"""
