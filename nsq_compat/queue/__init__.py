"""The heart of nsqd: topics, channels, what is in flight between them and their consumers, and what of it is on disk.

Frames move in batches (see ``protocol.message``): published once into a topic, written once to its log, shared by all
its channels, kept in flight at one consumer of each, finished or put back.

What moves:

    broker        all topics                    guid        message ids by the batch
    topic         bodies in, frames to channels stats       snapshots for /stats
    channel       frames shared out             statsd_lines  the same for statsd
    backlog       what either has to deliver    limits      what bounds all of it
    cursor        a place in a topic's stream   schedule    who wants attention when
    frame_queue   frames in memory              in_flight   frames that were sent
    deferred      frames before their time      line        whose turn it is, the nearest first
    latency       from publish to FIN           guard       who lets messages in, or does not
    intake        posts of one turn, together   stamper     bodies into frames
    diary         what comes and goes besides messages
    shared_reads  deferred frames read for one channel and needed by the others
    requeued      REQ delays in the log

What an operator may want besides (off unless he says so):

    policies      what was written, and for whom  policing    put in force, on what is there and what comes
    dead_letters  tried often enough            bounds      how much may wait
    throttle      a rate, before the line       tally       what must not be logged each time

What stays:

    storage       all topics on disk            topic_log   segments, recovery, release
    checkpoint    where each channel stands     segment     one file of a log
    recovery      from both to where it was     group       the frames of one publish, with checksums
    files         the seam to the file system   kept        old messages beside the log
    descriptors   open files, with a reserve    unsynced    what is not durable yet, sync_job makes it so
    reserve       disk space for checkpoints    leftovers   of deleted topics
    group_reader, log_reader, id_search, numbering, damage                      reading it all back

What Go's nsqd left, and what it gets back:

    data_path     the folder and its lock       go_data, go_queue_reader, go_queue_writer   its queue files
    metadata      nsqd.dat                      go_import, go_takeover                      theirs become ours
    stored_topic  a topic without a daemon      go_export                                   ours become theirs

May import: ``protocol``. It knows no network, and no clock: `now` in monotonic seconds and `now_ns` in nanoseconds
since 1970 come as parameters. Whoever is above gives ``Schedule.wake_at``, consumers (``channel.Consumer``), observers,
and ``Storage.commit``, which may wait.

Read ``channel`` first, then ``cursor`` and ``topic_log``.
"""
