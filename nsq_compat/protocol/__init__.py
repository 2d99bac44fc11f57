"""NSQ's wire formats: bytes to values and back. No sockets, queues or clocks.

Layouts:

    schema           every layout of the wire, declared       storage_schema  the layouts of files
    layout           fast codecs, derived from declarations; received bytes that a reader cannot use yet

From nsqd:

    message          message ids and frames                   frames       other frames; the client's frame reader

From clients:

    commands         the command table; checks of a line      command_reader  bytes to commands, in nsqd
    identify         the IDENTIFY body and its response       command_writer  commands to bytes, in clients

Both directions:

    lookup_commands  the protocol of nsqlookupd, both ends    compression     deflate and snappy
    go_json          JSON as Go reads and writes it           durations       Go's durations
    names            topics, channels, hosts                  errors          exceptions for error frames; quoting
    mirror           changes of files, from a primary to its standby

All readers are incremental and bounded: the result does not depend on how the input is split, and any bytes lead to
values or to the exceptions that the module declares.

Imports the standard library, ``construct`` (only this folder does), ``snappy``, ``zlib_ng`` and ``google_crc32c``;
nothing else of the project. Read ``schema`` first, then ``commands`` and ``command_reader``.
"""
