"""Starts programs of ours for tests without importing their modules each time, which is most of the cost of a start.

`install` replaces the step of `subprocess.Popen` that makes the child. From its second start on, a console script is
forked from a server: a process of the script itself, stopped when it had imported its modules and had not done
anything else. So a program is still a process of its own and a child of the test process, with the arguments,
environment, folder, limits, descriptors, session, signals and exit status of a real start. It differs in this:

- All processes of a program that one test process starts have the same seed of hashes and the same memory layout.
- `/proc/PID/cmdline` and `/proc/PID/environ` are those of the server. A traceback begins with two frames of this file.
- A module that is changed after the server has started is not read again.

All other starts are real: the first of each program in a test process, tests marked `real_start`, programs started by
other programs, those of programs that have an event loop when they are imported, and those with options or an
environment that the server does not have.
"""

# In the server, these are imported although the program may forget to; the programs import all of them.
import importlib
import io
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_MAX_REQUEST = 1 << 20
# A program may replace these with gevent's when it is imported.
_fork, _wait, _receive = os.fork, os.waitpid, socket.recv_fds
_PR_SET_CHILD_SUBREAPER = 36
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]

is_used = True
"""Whether programs are forked. `install` must have been called."""


def install() -> None:
    """Let `subprocess.Popen` fork programs of ours from servers that it starts. They end with this process."""
    import ctypes
    import inspect
    import subprocess
    import threading

    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        return  # Python measures coverage from its start on
    popen: Any = subprocess.Popen  # with private attributes
    really_start = popen._execute_child
    signature = inspect.signature(really_start)
    ordinary: dict[str, object] = {"executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": ()}
    ordinary |= {"env": None, "shell": False, "restore_signals": True, "process_group": -1}
    ordinary |= {"gid": None, "gids": None, "uid": None, "umask": -1}
    environment = _environment()
    servers: dict[str, socket.socket | None] = {}  # by the path of the script; None where it cannot be forked
    processes = []
    started: set[str] = set()
    lock = threading.Lock()
    adopt_orphans = ctypes.CDLL(None).prctl

    def server_of(script: str) -> socket.socket | None:
        if script not in started:
            started.add(script)
            return None
        if script not in servers:
            servers[script] = None
            if b"from nsq_compat.programs import" in Path(script).read_bytes():
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    command = [sys.executable, __file__, script, str(theirs.fileno())]
                    processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
                if ours.recv(100):
                    servers[script] = ours
                else:
                    ours.close()
        return servers[script]

    def execute_child(self: Any, *arguments: Any) -> None:
        start = signature.bind(self, *arguments).arguments
        handles = [start[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        descriptors = [number if handle == -1 else handle for number, handle in enumerate(handles)]
        words = start["args"]
        if (
            is_used
            and isinstance(words, list | tuple)
            and os.path.dirname(words[0]) == os.path.dirname(sys.executable)
            and all(start[name] == value for name, value in ordinary.items())
            and os.path.isdir(start["cwd"] or ".")
            and _environment() == environment
            and not any(map(os.isatty, descriptors))
        ):
            with lock:
                if server := server_of(os.fspath(words[0])):
                    request = {
                        "argv": [os.fspath(word) for word in words],
                        "cwd": os.path.abspath(start["cwd"] or "."),
                        "environ": dict(os.environ),
                        "limits": [resource.getrlimit(each) for each in _LIMITS],
                        "new_session": start["start_new_session"],
                    }
                    adopt_orphans(_PR_SET_CHILD_SUBREAPER, 1)
                    try:
                        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
                        self.pid = int(server.recv(100))
                        assert server.recv(100) == b"adopted"
                    finally:
                        adopt_orphans(_PR_SET_CHILD_SUBREAPER, 0)
                    self._child_created = True
                    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                    self._close_pipe_fds(*(start[name] for name in pipes))
                    return
        really_start(self, *arguments)

    popen._execute_child = execute_child


def _environment() -> dict[str, str]:
    """Without the variable that pytest sets for each test, and for its own sake."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _serve(tests: socket.socket) -> None:
    """Answer requests of the test process. Return in each new process, which then is as after a real start."""
    if not _can_fork(tests):
        os._exit(0)
    tests.send(b"ready")
    while True:
        text, descriptors, _, _ = _receive(tests, _MAX_REQUEST, 3)
        if not text:
            os._exit(0)
        if between := _fork():
            _wait(between, 0)
            tests.send(b"adopted")
            for each in descriptors:
                os.close(each)
        elif program := _fork():
            # The process that ends here leaves the program to the test process.
            tests.send(str(program).encode())
            os._exit(0)
        else:
            break
    tests.close()
    request = json.loads(text)
    if request["new_session"]:
        os.setsid()
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    for each, limits in zip(_LIMITS, request["limits"], strict=True):
        if resource.getrlimit(each) != tuple(limits):
            resource.setrlimit(each, limits)
    sys.argv[:] = request["argv"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        new = _opened_again(getattr(sys, name), number)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _opened_again(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """As Python opens a standard stream; the old one remembers what it was about the old file."""
    buffer = raw = io.FileIO(descriptor, stream.mode, closefd=False)
    raw.name = stream.name
    if not isinstance(stream.buffer, io.FileIO):
        buffer = type(stream.buffer)(raw)
    line_buffering, write_through = stream.line_buffering, stream.write_through
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, "\n", line_buffering, write_through)


def _can_fork(tests: socket.socket) -> bool:
    """Whether the import has left no thread, and no descriptor, such as of an event loop."""
    descriptors = {each for each in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{each}")}
    return descriptors == {0, 1, 2, tests.fileno()} and len(os.listdir("/proc/self/task")) == 1


def _main() -> None:
    # Ctrl-C in the terminal reaches all processes of the tests; this one ends with the test process.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    script, descriptor = sys.argv[1:]
    sys.argv[:] = [script]
    sys.path[0] = os.path.dirname(script)
    tests = socket.socket(fileno=int(descriptor))
    programs: Any = importlib.import_module("nsq_compat.programs")
    import_module = programs.import_module

    def import_and_serve(name: str) -> object:
        module = import_module(name)
        _serve(tests)
        return module

    programs.import_module = import_and_serve
    exec(compile(Path(script).read_bytes(), script, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _main()
