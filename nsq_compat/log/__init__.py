"""The topic log, to which messages are written before they are acknowledged, and recovery of topics after a restart.

A topic's folder holds a log and a checkpoint. The log is a sequence of segments, a segment is a sequence of groups, and
a group is one publish with its checksums. The checkpoint contains each channel's position in the log, and the ids of
messages that the channel has taken and not finished.

Writing:

    storage         all topics of a data path: writes their checkpoints, applies the durability level, reserves
                    disk space for checkpoints, and refuses publishes once that is used up
    topic_log       one topic's segments: append, read, release, delete
    segment         one file of a log: the encoding of each publish in it, and the file of a large publish
    kept            messages copied out of released segments
    memory_tail     the newest messages at level memory, which are in no file yet
    control_log     control records: channels, pauses, emptying, REQ delays
    sync            group commit of appended groups

Reading:

    reading         across segments: in order, by location, or by message id
    offsets         by offset or time of publishing; what a policy retains
    group_reader    within a segment, past damage        damage        counts and logs lost messages

Starting:

    checkpoint      a topic's state as bytes             recovery      the state from checkpoint and log
    migration       files of an earlier version

Files:

    files           the interface to the file system     descriptors   open files, their limit; failed reads
    data_path       the folder, its lock, its layout     metadata      nsqd.dat, in Go's format
    mirrored_files  notes every change, for a standby    mirror_copy   a standby's copy, and how it is completed
    identity        the name of a data path in mirroring

May import ``protocol``. Functions that touch files raise ``OSError``; damage raises nothing and is counted.

Read ``topic_log`` first, then ``segment`` and ``recovery``.
"""
