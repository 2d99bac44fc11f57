"""Bytes to values and back: everything NSQ's wire formats say, and nothing about sockets, queues or clocks.

It imports the standard library, ``construct`` (only this folder does), ``snappy``, ``zlib_ng`` and ``google_crc32c``;
nothing else of the project.

Read ``schema`` first: it declares every byte layout of the wire; ``storage_schema``
those of files. Then, from the outside in:

- ``layout`` derives fast codecs from the fixed-size declarations; ``sizes`` are those of sizes and counts.
- ``frames`` and ``message`` build what nsqd sends, of ``alike`` bodies by the batch; ``frame_reader`` cuts it apart
  again on the client's side.
- ``commands`` are the values a client's commands become, ``command_table`` the grammar as data, and
  ``command_reader`` the server side that cuts received bytes into commands, ``command_bodies`` what follows a line.
- ``command_writer`` is the client side: commands as bytes.
- ``identify`` encodes and decodes the IDENTIFY body and its answer, on top of ``go_json``, which is JSON the way Go
  reads and writes it.
- ``lookup_commands`` is the other protocol: nsqd talking to nsqlookupd, both ends.
- ``receive_buffer`` holds received bytes until a reader can go on; all readers but the busiest one stand on it.
- ``compression`` is deflate and snappy, bytes to bytes, below all of the above once a client has asked for it.
- ``names`` and ``quoting`` say which names are legal and how an illegal one is printed; ``numbers`` are those in a
  command's line, ``durations`` are Go's.
- ``redacting`` takes secrets out of texts that others may read.
- ``errors`` are the exceptions that become error frames.

Everything that reads is incremental and bounded: any way of cutting the input gives the same result, and any bytes
lead to values or to the exceptions a module declares, never to another.
"""
