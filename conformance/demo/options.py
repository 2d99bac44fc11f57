"""The demonstration of ``scripts/run``: nsqlookupd, nsqd and nsqadmin, with a publisher and consumers.

A process publishes the lines of a file, another one consumes them; both use pynsq, the official Python client. The
publisher knows the address of nsqd; the consumer knows only nsqlookupd and finds nsqd through it. Each line must be
received exactly once, and again by a new channel that begins with the first of them. Then, until Ctrl-C, some dozens of
events a second pass through the topic events, with one consumer that keeps up and one that sometimes falls behind.
Spark counts the events by page and time window, and nsqadmin shows them in a browser. The exit status is 0 if all lines
arrived once and no process ended early.
"""

# Imports nothing that has to be installed: `scripts/run --help` runs this file before anything is.
import argparse
import os
from pathlib import Path

PORTS = {"tcp": 4150, "http": 4151, "lookupd-tcp": 4160, "lookupd-http": 4161, "admin": 4171}


def parse_arguments() -> argparse.Namespace:
    """The daemons are None unless they are chosen."""
    parser = argparse.ArgumentParser(
        prog="scripts/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, port in PORTS.items():
        parser.add_argument(f"--{name}-port", type=int, default=port, help=f"0: any free port (default: {port})")
    parser.add_argument("--data-path", type=Path, help="nsqd's data path (default: a temporary folder)")
    parser.add_argument("--file", type=Path, help="the file to send (default: one that comes with Python)")
    parser.add_argument("--once", action="store_true", help="stop after the comparison and Spark's table")
    parser.add_argument(
        "--no-spark", action="store_true", help="leave out Spark, which needs Java 17 and a minute or more to start"
    )
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="also lose the machine of an nsqd that is mirrored, and none of its events",
    )
    for name in ("nsqd", "nsqlookupd", "nsqadmin"):
        variable = f"{name.upper()}_COMMAND"
        parser.add_argument(
            f"--{name}",
            default=os.environ.get(variable),
            help=f"command line of the {name} to run (default: {variable} from the environment, or ours)",
        )
    return parser.parse_args()


if __name__ == "__main__":
    parse_arguments()
