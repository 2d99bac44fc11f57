"""A differential fuzzer: the same random sessions with two nsqd, and the differences in their answers.

acts           the steps of a session: send, wait, answer a message, send an HTTP request
streams        generates acts from a seed, with `commands`, `requests`, `mistakes` and the `vocabulary`
conversation   the acts generated so far; `account` models the resulting state of nsqd
playing        plays acts on one nsqd, over `tcp_connection` and `http_client`, and records its answers
loop           runs hundreds of plays in one thread
comparing      plays a stream on two nsqd and compares their answers
campaign       plays many streams side by side and counts the results
fuzz           the command: ``python -m nsq_conformance.differential.fuzz --peer /path/to/nsqd``

Read ``streams`` first.
"""
