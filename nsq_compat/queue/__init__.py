"""The heart of nsqd: topics, channels, what is in flight between them and their consumers, and what of it is on disk.

Frames move in batches (see ``protocol.message``): published once into a topic, written once to its log, shared by all
its channels, kept in flight at one consumer of each, finished or put back.

What moves:

    broker        all topics                    guid        message ids by the batch
    topic         bodies in, frames to channels stamper     bodies into frames
    channel       frames shared out             stats       the values of /stats; snapshot reads them
    backlog       what either has to deliver    statsd_lines  the same for statsd
    cursor        a place in a topic's stream   limits      what bounds all of it
    frame_queue   frames in memory              schedule    alarms, in the order of their times
    deferred      frames before their time      in_flight   frames that were sent
    latency       from publish to FIN           line        idle consumers, in turn or the nearest first
    intake        posts of one turn, together   exiting     why a publish is refused, and the check for it
    watch         what was published last       diary       what comes and goes besides messages
    large_batch   a publish in steps            requeued    REQ delays in the log
    shared_reads  deferred frames read for one channel and needed by the others

What an operator may want besides (off by default):

    policies      what was written, and for what  policing  put in force, on what is there and what comes
    dead_letters  tried often enough            bounds      how much may wait

What stays:

    storage       all topics on disk, and a reserve of space    topic_log   segments, recovery, release
    checkpoint    the state of a topic in a file                segment     one file of a log
    recovery      the state from checkpoint and log             group       the frames of one publish, with checksums
    audit         what a log has lost                           kept        old messages beside the log
    files         the seam to the file system                   staged_batch  the file of a large publish
    descriptors   open files, with a reserve, and read errors   sync        what is not durable yet, and making it so
    group_reader, log_reader, id_search, damage                 reading it all back

What Go's nsqd left, and what it gets back:

    data_path     the folder and its lock       go_data, go_queue_reader, go_queue_writer   its queue files
    metadata      nsqd.dat                      go_import, go_takeover                      theirs become ours
    stored_topic  a topic without a daemon      go_export                                   ours become theirs

May import: ``protocol``. It knows no network, and no clock: `now` in monotonic seconds and `now_ns` in nanoseconds
since 1970 come as parameters. Whoever is above gives ``Schedule.wake_at``, consumers (``channel.Consumer``), observers,
and ``Storage.commit``, which may wait.

Read ``channel`` first, then ``cursor`` and ``topic_log``.
"""
