"""The program ``nsqlookupd``: options, wiring, and the order in which it starts and stops.

    main        command line in, exit code out      service     the daemon as its HTTP API sees it
    options     the table of its options            daemon      database, listeners, start and stop

May import everything below. What is worth testing by itself sits on a lower floor; this one is tested as a process.

Read ``daemon`` first.
"""
