"""The program ``nsqlookupd``: options, wiring, and the order in which it starts and stops.

    main        command line in, exit code out; database, listeners, start and stop
    options     the table of its options

May import every other folder. The parts that are tested by themselves are in lower layers; this folder is tested as a
process.
"""
