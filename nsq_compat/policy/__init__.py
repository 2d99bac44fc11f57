"""Policies: optional behaviour of topics and channels that NSQ does not have, and permissions. None by default.

    policies      the tables of the config file, and which of them applies to a channel
    enforcer      applies them to existing topics and channels, and to new ones; enforces max_depth, max_bytes, max_age
    access        the access file: tokens and their permissions
    dead_letters  messages that reached max_attempts, on their way to the dead-letter topic
    log_throttle  log lines about events that may be frequent

The rate limit is a wait queue of the channel: ``queue.wait_queue.Throttle``. Retention is a setting of the topic's
store: ``log.storage.TopicStore.retain``.

May import ``queue``, ``log`` and ``protocol``. A channel or topic without policies calls nothing in this folder.
"""
