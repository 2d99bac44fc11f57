"""Command lines, config files and log lines: what all programs share between `sys.argv` and their options object.

    options     a program's dataclass of options, which is its table of flags
    kinds       how each type of value is read, converted and printed
    literals    numbers and booleans as Go reads them
    flags       the command line, the usage text, and the documentation's page of flags
    lifecycle   the config file, and the first step of a daemon: options, or an exit code
    logs        NSQ's log lines, without ever waiting for their reader

May import the standard library and pure modules of ``protocol``; nothing here knows gevent, sockets or queues.

Read ``options`` first.
"""
