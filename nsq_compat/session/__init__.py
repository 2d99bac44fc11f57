"""Conversations: one object per connection, fed with received bytes, asked for bytes to send. No I/O.

    conversation    what a connection asks of every session
    nsqd_session    a client of nsqd (V2)
    admission       what a command's line says of it
    publisher       the client as a producer
    subscription    the client as a consumer of a channel
    client_figures  what /stats shows of it
    nsqd_limits     what a client may negotiate
    authorization   what it may do, where auth servers decide it
    lookupd_session an nsqd, as nsqlookupd hears it (V1)
    lookup_peer     nsqlookupd, as nsqd talks to it
    upgrade         TLS and compression, on their way between socket and session
    refusals        errors in NSQ's words
    http_session    an HTTP client of a daemon
    ack_session     an HTTP client whose acknowledgements are awaited
    http_reader     its bytes to requests, by llhttp
    http_message    requests and responses as values
    client_session  the other side: a client talking to nsqd

May import: ``queue``, ``registry`` and below, and nothing that does I/O; import-linter sees to it. A session is
tested by feeding it bytes and moving a number called `now`.

Read ``nsqd_session`` first.
"""
