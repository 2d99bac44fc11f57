"""The command ``nsq-conformance``, also ``python -m nsq_conformance``.

Ctrl-C ends it silently with status 130, also while it imports its modules.
"""

import signal
import sys

_interrupt = signal.getsignal(signal.SIGINT)
if _interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    from nsq_conformance import report

    signal.signal(signal.SIGINT, _interrupt)
    return report.main()


if __name__ == "__main__":
    sys.exit(main())
