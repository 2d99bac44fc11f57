"""The console scripts: each imports its program and runs it.

Python raises KeyboardInterrupt on Ctrl-C. While a program imports its modules, which takes half a second, that would
print a traceback; so the first thing is that Ctrl-C ends the process silently, as it ends a Go program that starts.
Each program handles signals itself as soon as it has read its options.
"""

import signal
from collections.abc import Callable
from importlib import import_module

# Ctrl-C stays ignored where it is, such as in a background job of a script.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _program(module: str, function: str = "main") -> Callable[[], object]:
    def run() -> object:
        return getattr(import_module(f"nsq_compat.{module}"), function)()

    return run


nsqd = _program("nsqd.main")
nsqlookupd = _program("nsqlookupd.main")
nsqadmin = _program("nsqadmin.main")
nsq_access = _program("tools.nsq_access")
nsq_data = _program("tools.nsq_data")
nsq_redrive = _program("tools.nsq_redrive")
nsq_rewind = _program("tools.nsq_rewind")
nsq_replay = _program("tools.nsq_replay")
nsq_pubsub = _program("tools.http_consumers.programs", "pubsub")
nsq_pull = _program("tools.http_consumers.programs", "pull")
nsq_stat = _program("tools.nsq_stat")
nsq_to_http = _program("tools.nsq_to_http")
nsq_to_nsq = _program("tools.nsq_to_nsq")
nsq_tail = _program("tools.nsq_tail")
nsq_to_file = _program("tools.nsq_to_file.main")
to_nsq = _program("tools.to_nsq")
