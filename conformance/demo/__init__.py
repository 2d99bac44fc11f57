"""The demonstration of ``scripts/run``, and a stream of events that other programs can use.

event       generates the events of a shop from a seed; no I/O
events      the command ``python -m nsq_conformance.demo.events publish`` (or ``consume``), with pynsq
stream      runs these programs: a publisher, and a consumer per channel
spark       runs a Spark job that counts the events
comparison  sends a file through nsqd and compares the received lines
mirror      loses the machine of an nsqd that is mirrored
options     its options, which need nothing installed
__main__    daemons, comparison, stream and Spark, until Ctrl-C
"""
