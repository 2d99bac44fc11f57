"""The demonstration behind ``scripts/run``, and a stream of events that other programs may read too.

event       what happens in a shop, from a seed: pure
events      the command: ``python -m nsq_conformance.demo.events publish`` (or ``consume``), with pynsq
stream      those programs at work: one that publishes, one for each channel
spark       Spark counts them
comparison  a file sent through nsqd and what came back, line by line
__main__    daemons, comparison, stream, Spark, until Ctrl-C
"""
