"""Command lines, config files and log lines of all programs: from `sys.argv` to an options object.

    options     a program's dataclass of options, which is its table of flags; options of all daemons
    kinds       how each type of value is read, converted and printed; literals as Go reads them
    flags       the command line, the usage text, the config file, and a daemon's exit codes
    logs        NSQ's log lines, written without blocking

May import the standard library and pure modules of ``protocol``; nothing here uses gevent, sockets or queues.

Read ``options`` first.
"""
