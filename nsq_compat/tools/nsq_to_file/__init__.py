"""``nsq_to_file``: the messages of topics in files on the disk, one line for each message.

    main            options, and the topics that are recorded
    recorder        one topic: its consumer, the thread that writes, and when messages are finished
    file_series     the files of one topic: their names, when one ends and the next begins, recovery after a crash
    output_file     one file: written, synced, compressed, moved, repaired

A message is finished when the file that contains it is on the disk. Read ``recorder`` first.
"""
