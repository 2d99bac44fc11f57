"""Programs that give messages to HTTP clients.

    programs        nsq_pubsub: topics as endless HTTP streams; nsq_pull: a channel behind HTTP, message by message
    streaming       the handler of nsq_pubsub: /sub and /stats
    pulling         the handler of nsq_pull: /get, /mget, /put, /mput, /stats and /ping
    on_demand       messages that are taken from nsqd only when a client wants them
    ack_http        an HTTP server that tells its handlers how much of an answer the client has acknowledged

A message is finished when the client's system has acknowledged the answer that contains it. Read ``ack_http`` first.
"""
