"""Topics and channels: messages from producers to consumers.

Frames (see ``protocol.message``) move in batches. A publish makes them once; the topic writes them to its log and gives
the same objects to all its channels. A channel delivers them to its consumers and keeps them in flight until FIN.

    broker    all topics; snapshots for /stats             publish_batch  publishes together, and in steps
    topic     publishes to channels, at once or deferred   wait_queue     idle consumers; limits of deliveries; zones
    channel   delivers to consumers                        in_flight      messages that a consumer has
    backlog   messages to be delivered; their position     schedule       alarms, in time order
    deferred  messages before their time                   latency        from publish to FIN
    values    limits, refusals, the values of /stats       withdrawal     takes messages out by their ids
    replay    delivers a part of the log once more         publish_ids    recognizes repeated publishes
    message_state  where one message is                    departed       messages that consumers have left
    turns     of clients, at work that waits

May import ``log`` and ``protocol``. It knows neither network nor clock: `now` (monotonic seconds) and `now_ns`
(nanoseconds since 1970) are parameters. Nor does it know the durability level: every topic that is not ephemeral has a
log, and what memory has no room for is read from there. The layers above provide ``Schedule.wake_at``, consumers
(``channel.Consumer``), observers, and ``Storage.commit``, which may block.

Read ``channel`` first, then ``backlog``.
"""
