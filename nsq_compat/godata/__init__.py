"""The data path of Go's nsqd: reading it at the start, and writing it for the way back.

    format    names, positions and records of Go's disk queues
    reader    reads a disk queue, damaged or not
    runs      merges the messages of disk queues by id
    takeover  imports all disk queues of a data path when nsqd starts, each topic atomically
    export    writes topics as disk queues, for the way back to Go's nsqd

nsqd.dat, which both servers use, is in ``log.metadata``.

May import ``queue``, ``log`` and ``protocol``.
"""
