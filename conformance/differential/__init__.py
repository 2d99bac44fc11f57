"""The same random conversations with two nsqd, and what they answered differently.

    acts        what happens in a conversation: somebody says something, waits, answers, asks over HTTP
    streams     a seed becomes a list of acts
    playing     acts become what one nsqd answered
    comparing   two nsqd, one stream: equal, different, or different for a reason that is known
    fuzz        the command: ``python -m conformance.differential.fuzz --peer /path/to/nsqd``

Read ``streams`` first.
"""
