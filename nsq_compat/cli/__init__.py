"""Command lines, config files and log lines: what all programs share between `sys.argv` and their options object.

It imports the standard library and pure modules of `protocol`; nothing here knows gevent, sockets or queues.

Read `options` first: a program's dataclass of options is its table. Then:

- `kinds` says how each type of value is read, converted and printed, on top of `literals`.
- `flags` reads the command line and prints the usage text, `config_file` reads TOML; both go by the table.
- `flags_page` makes the documentation's page of all flags from the tables.
- `lifecycle` joins them into the first step of a daemon: options, or an exit code.
- `logs` writes NSQ's log lines and never gets in the way.
- `errors` is the one exception an operator's mistake becomes.
"""
