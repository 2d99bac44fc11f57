"""The same random conversations with two nsqd, and what they answered differently.

    acts           what happens in a conversation: somebody says something, waits, answers, asks over HTTP
    streams        a seed becomes a list of acts: of `commands`, `requests` and `mistakes`, in the words of `vocabulary`
    conversation   what a stream has said so far; `account` is what its generator believes to have come of it
    playing        acts become what one nsqd answered, over `lines` (TCP) and a desk for `asking` (HTTP)
    loop           hundreds of plays in one thread
    comparing      two nsqd, one stream: equal, different, or different for a reason that is known
    crowd          streams side by side, and the count of what came of them
    fuzz           the command: ``python -m nsq_conformance.differential.fuzz --peer /path/to/nsqd``

Read ``streams`` first.
"""
