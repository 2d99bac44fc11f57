"""The command ``nsq-conformance``, also ``python -m nsq_conformance``.

Ctrl-C ends it silently with status 130, also while it imports its modules.
"""

import signal
import sys


def main() -> int:
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nsq_conformance import report

    signal.signal(signal.SIGINT, interrupt)
    return report.main()


if __name__ == "__main__":
    sys.exit(main())
