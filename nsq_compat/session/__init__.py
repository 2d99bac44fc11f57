"""Conversations: one object per connection, fed with received bytes, asked for bytes to send. No I/O.

    nsqd_session    a client of nsqd (V2)
    nsqd_limits     what a client may negotiate

May import: ``queue`` and below, and nothing that does I/O; import-linter sees to it. A session is tested by feeding it
bytes and moving a number called `now`.

Read ``nsqd_session`` first.
"""
