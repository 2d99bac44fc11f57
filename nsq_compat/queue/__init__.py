"""The heart of nsqd: topics, channels, and what is in flight between them and their consumers. Knows no network.

Frames move in batches (see ``protocol.message``): published once into a topic, shared by all its channels, kept in
flight at one consumer of each, finished or put back.

    broker        all topics                    guid        message ids by the batch
    topic         bodies in, frames to channels stats       snapshots for /stats
    channel       frames shared out             limits      what bounds all of it
    backlog       frames that wait              exiting     the refusal when something ends
    in_flight     frames that were sent         schedule    who wants attention when
    deferred      frames before their time

May import: ``protocol``. A clock value comes as a parameter: `now` in monotonic seconds, `now_ns` in nanoseconds since
1970. Whoever is above gives ``Schedule.wake_at``, consumers (``channel.Consumer``) and observers.

Read ``channel`` first.
"""
