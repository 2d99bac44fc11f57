"""``nsq_to_file``: the messages of topics in files on the disk, one line for each message.

    main            options, and the topics that are recorded
    recorder        one topic: its consumer, the thread that writes, and when messages are finished
    file_series     the files of one topic: when one ends and the next begins
    output_file     one file: written, synced, compressed, put in place, recovered after a crash
    file_names      the names of files

A message is finished when the file that contains it is on the disk. Read ``recorder`` first.
"""
