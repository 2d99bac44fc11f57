"""The program ``nsqlookupd``: options, wiring, and the order in which it starts and stops.

    main        command line in, exit code out
    options     the table of its options
    daemon      database, listeners, start and stop

May import every other folder. The parts that are tested by themselves are in lower layers; this folder is tested as a
process.

Read ``daemon`` first.
"""
