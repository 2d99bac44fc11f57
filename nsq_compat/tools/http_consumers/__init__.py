"""Programs that give messages to HTTP clients.

    nsq_pubsub      the program: topics as endless HTTP streams
    streaming       its handler: /sub and /stats
    nsq_pull        the program: a channel behind HTTP, message by message
    pulling         its handler: /get, /mget, /put, /mput, /stats and /ping
    on_demand       messages that are taken from nsqd only when a client wants them
    ack_http        an HTTP server whose handlers learn how much of an answer the client's system has acknowledged

A message is finished when the client's system has acknowledged the answer that contains it. Read ``ack_http`` first.
"""
