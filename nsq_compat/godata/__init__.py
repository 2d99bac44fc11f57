"""The data path of Go's nsqd: reading it at the start, and writing it for the way back.

    format        names, positions and records of Go's disk queues
    reader        reads a disk queue, damaged or not     writer   writes one
    queue_import  turns disk queues into topics          takeover does so for a whole data path
    export        turns our topics into disk queues

nsqd.dat, which both servers use, is in ``log.metadata``.

May import ``queue``, ``log`` and ``protocol``.
"""
