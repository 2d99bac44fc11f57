"""``pynsq_client`` with the workaround of docs/coming-from-pynsq.md for compressed connections.

If no data is available, pynsq's sockets for deflate and snappy raise an ``OSError`` without errno, and Tornado closes
the connection. Here they raise the error that other sockets raise.
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
