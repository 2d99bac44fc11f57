"""Sessions: one object per connection, fed with received bytes and asked for bytes to send. No I/O.

    conversation    the interface between a connection and every session
    nsqd_session    a client of nsqd (V2): a method for each command, and limits such as --max-rdy-count
    negotiation     IDENTIFY: limits, settings such as the heartbeat interval, TLS and compression
    authorization   permissions from auth servers
    tracing         commands and deliveries in the log, at --log-level=debug
    client_roles    the client as a producer, and as a consumer of a channel
    lookupd_session an nsqd, as a client of nsqlookupd (V1)
    lookup_peer     nsqd, as a client of nsqlookupd (V1)
    http_session    an HTTP client of a daemon
    http_request_reader  requests from the bytes of an HTTP client
    ack_session     an HTTP client of a tool, which learns how much of an answer has arrived
    http_message    HTTP requests, responses and limits as values; responses as bytes
    client_session  the client's side of a connection to nsqd
    mirror_session  nsqd, as the primary of a standby

May import: ``queue``, ``registry`` and below, and nothing that does I/O; import-linter checks that. A session is tested
by feeding it bytes and passing times as `now`.

Read ``nsqd_session`` first.
"""
