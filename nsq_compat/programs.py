"""The console scripts: each imports its program and runs it.

Python raises KeyboardInterrupt on Ctrl-C. While a program imports its modules, which takes a tenth of a second, that
would print a traceback; so the first thing is that Ctrl-C ends the process silently, as it ends a Go program that
starts. Each program handles signals itself as soon as it has read its options.
"""

import gc
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from threading import Lock
from types import ModuleType

from nsq_compat import NSQ_VERSION, build_line, version_text

# Ctrl-C stays ignored where it is, such as in a background job of a script.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Libraries import these modules at the top, and use them for features that most programs here do not have. Together
# they take an eighth of the time of nsqd's start and 6 MB of memory, most of it for OpenSSL, which hashlib loads.
_SELDOM_USED = ("hashlib", "inspect", "ipaddress", "pdb", "pickle")


class _Deferred(ModuleType):
    """Stands for a module, which it imports when one of its attributes is used."""

    _lock = Lock()

    def __getattr__(self, name: str) -> object:
        with self._lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(__import__(self.__name__), name)


def _program(name: str, module: str, function: str = "main", *, names_build: bool = False) -> Callable[[], object]:
    def run() -> object:
        if sys.argv[1:] in (["--version"], ["-version"]):
            # Before anything is imported. Other command lines with this flag are read by the program.
            print(version_text(name) if names_build else f"{name} v{NSQ_VERSION}\n{build_line()}")
            return None
        for each in _SELDOM_USED:
            sys.modules.setdefault(each, _Deferred(each))
        # Nearly all objects of the modules stay, so looking for garbage among them would waste a tenth of the time.
        gc.disable()
        program = import_module(f"nsq_compat.{module}")
        gc.freeze()
        gc.enable()
        return getattr(program, function)()

    return run


nsqd = _program("nsqd", "nsqd.main", names_build=True)
nsqlookupd = _program("nsqlookupd", "nsqlookupd.main", names_build=True)
nsqadmin = _program("nsqadmin", "nsqadmin.main", names_build=True)
nsq_access = _program("nsq_access", "tools.nsq_access", names_build=True)
nsq_data = _program("nsq_data", "tools.nsq_data", names_build=True)
nsq_nodes = _program("nsq_nodes", "tools.nsq_nodes")
nsq_redrive = _program("nsq_redrive", "tools.nsq_redrive")
nsq_rewind = _program("nsq_rewind", "tools.nsq_rewind")
nsq_replay = _program("nsq_replay", "tools.nsq_replay")
nsq_pubsub = _program("nsq_pubsub", "tools.http_consumers.programs", "pubsub")
nsq_pull = _program("nsq_pull", "tools.http_consumers.programs", "pull")
nsq_stat = _program("nsq_stat", "tools.nsq_stat")
nsq_to_http = _program("nsq_to_http", "tools.nsq_to_http")
nsq_to_nsq = _program("nsq_to_nsq", "tools.nsq_to_nsq")
nsq_tail = _program("nsq_tail", "tools.nsq_tail")
nsq_to_file = _program("nsq_to_file", "tools.nsq_to_file.main")
to_nsq = _program("to_nsq", "tools.to_nsq")
