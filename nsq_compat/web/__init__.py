"""HTTP applications: what daemons answer over HTTP. Values in, values out; no socket and no greenlet.

    application      routes, error boundary, access log: what every daemon's API is made of; start here
    routing          which route a path means, and what a path that is none hears
    responses        the two forms of reply (V1 and plain), and errors as exceptions
    query            query strings, read as Go reads them
    nsqd_service     what nsqd's API asks of the daemon
    nsqd_api         the table of nsqd's routes
    publishing       /pub and /mpub
    administration   /topic/... and /channel/...;  peeking  what waits in a channel
    statistics       /stats and /info;  stats_text is their form for people
    configuration    /config
    metrics          /metrics, /livez, /readyz of every daemon;  nsqd_metrics, nsqlookupd_metrics  their figures
    prometheus       what of that needs prometheus_client, which is an extra
    profiling        /debug
    go_time          durations and moments as Go prints them
    nsqlookupd_api   nsqlookupd's API: its routes, its answers;  nsqlookupd_service  what it asks of the daemon

May import net (the values of `http_message` only), session, queue, registry and protocol; never gevent: what
has to wait or to look at greenlets is asked of the service.
"""
