"""``pynsq_client`` with the workaround that docs/coming-from-pynsq.md shows: compression without it ends connections.

Its sockets for deflate and snappy say that nothing has come yet by an ``OSError`` without a number, which Tornado takes
for the end of the connection. Here they say it as every other socket does.
"""

import os
import sys
from types import SimpleNamespace

import nsq.deflate_socket
import nsq.snappy_socket

from nsq_conformance.pynsq_client import main

for module in (nsq.deflate_socket, nsq.snappy_socket):
    module.socket = SimpleNamespace(error=lambda number: BlockingIOError(number, os.strerror(number)))

if __name__ == "__main__":
    sys.exit(main())
