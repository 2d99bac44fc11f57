"""Runs the blocks of a page in one shell, and compares the output. Started inside the page's sandbox (`sandbox.py`).

``python page_runner.py FOLDER`` reads ``plan.json`` in the folder and writes ``verdict``: empty if every block did what
the page says, else what failed.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.docs.blocks import CONSOLE, PYCON, PYTHON, Block, commands, matches

LISTENERS: Final = frozenset({"nsqd", "nsqlookupd", "nsqadmin", "nsq_pubsub", "nsq_pull"})
"""Programs that must be listening before the next command is run."""
_STAYS: Final = re.compile(
    r"^(nsqd|nsqlookupd|nsqadmin|nsq_pubsub|nsq_pull|nsq_to_(file|http|nsq)|nsq_tail|curl)( |$)(?!.*(&$|\|))"
)
_ENDS: Final = re.compile(r"--check-config|--version|--help|--n=|^curl (?!-N)")
_COMMENT: Final = re.compile(r"\s+#\s.*$")
_TERMINALS: Final = """
kept=
# Stop the programs in the foreground of the imagined terminals. None of them may have failed.
leave() {
    for pid in $kept; do end "$pid"; done
    kept=
}
end() {
    local status=0
    kill "$1" 2>/dev/null || true
    wait "$1" || status=$?
    case $status in 0|127|137|143) ;; *) echo "a program in the background ended with $status"; return 1 ;; esac
}
leave_all() {
    for pid in $(jobs -p); do end "$pid"; done
}
"""


_SECONDS_FOR_A_COMMAND: Final = 600.0
_SECONDS_FOR_A_CHANGE: Final = 60.0
_LISTENING: Final = "0A"


class PageFailed(Exception):
    """A block did not do what the page says."""


class Shell:
    """One bash for the whole page: variables, the folder and background jobs last from block to block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        reading, writing = os.pipe()
        self._statuses = os.fdopen(reading, "rb", 0)
        self._bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, text=True, pass_fds=(writing,), stdout=subprocess.DEVNULL
        )
        os.close(writing)
        self._status_fd = writing
        self._type("set -eo pipefail")
        self.run(_TERMINALS)

    def run(self, text: str) -> str:
        """Run commands, wait until the daemons they started listen, and return both outputs. Raises `PageFailed`."""
        self._count += 1
        typed, output = (self._folder / f"{self._count}.{suffix}" for suffix in ("sh", "out"))
        typed.write_text(f"{text}\n")
        fd = self._status_fd
        self._type(f'source {typed} {fd}>&- >{output} 2>&1 </dev/null; echo "$?" >&{fd}')
        ended = bool(select.select([self._statuses], [], [], _SECONDS_FOR_A_COMMAND)[0]) and bool(
            self._statuses.read(64)
        )
        if not ended:
            raise PageFailed(f"{text}\nfailed, or took too long. Its output:\n{output.read_text(errors='replace')}")
        self._wait_for_listeners()
        return output.read_text(errors="replace")

    def _type(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()

    def _wait_for_listeners(self) -> None:
        deadline = time.monotonic() + _SECONDS_FOR_A_CHANGE
        while busy := [name for pid, name in self._about_to_listen() if not _listens(pid)]:
            if time.monotonic() > deadline:
                raise PageFailed(f"does not listen: {busy}")
            time.sleep(0.02)

    def _about_to_listen(self) -> Iterator[tuple[int, str]]:
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            programs = {Path(word).name for word in words[:2]}
            # A job that is still bash is about to become a program. Until then its command line cannot be read.
            becomes = int(parent) == self._bash.pid and words[0] in ("bash", "") and state != "Z"
            if programs & LISTENERS or becomes:
                yield pid, " ".join(words)


def _listens(pid: int) -> bool:
    listening = {
        fields[9]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == _LISTENING
    }
    try:
        held = {_target(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return True  # it has ended; `leave` checks its status
    return any(f"socket:[{inode}]" in held for inode in listening)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # closed meanwhile


def run_block(shell: Shell, block: Block, folder: Path, *, pasted: bool = False) -> None:
    """Run a block as its language demands, or all its commands at once. Raises `PageFailed`."""
    if pasted:
        shell.run(block.text)
    elif block.language == PYTHON:
        _run_program(block, folder)
    elif block.language == PYCON:
        (folder / "session.txt").write_text(f"{block.text}\n")
        shell.run(f"python -m doctest {folder}/session.txt")
    else:
        for command in commands(block):
            typed = f"{command.text} || true" if _only_queries(command.text) else command.text
            output = [shell.run(piece) for piece in in_terminals(typed)]
            if block.language == CONSOLE:
                _compare(shell, command.text, command.shown or "", "".join(output))


def in_terminals(text: str) -> list[str]:
    """Split commands so that a program that stays in the foreground gets a terminal of its own.

    Programs that earlier blocks left in the foreground are stopped first.
    """
    pieces: list[str] = []
    typed: list[str] = []
    for line in re.sub(r"\\\n\s*", "", text).split("\n"):
        bare = _COMMENT.sub("", line).rstrip()
        if _STAYS.match(bare) and not _ENDS.search(bare):
            typed += [*(() if pieces else ("leave",)), f"{bare} &", 'kept+=" $!"']
        else:
            typed.append(line)
        if typed[-1].startswith("kept") or bare.endswith(" &"):
            pieces.append("\n".join(typed))
            typed = []
    return [*pieces, "\n".join(typed)]


def _compare(shell: Shell, text: str, shown: str, output: str) -> None:
    """Compare the output with the page. A command that only queries is repeated until its output matches."""
    deadline = time.monotonic() + (_SECONDS_FOR_A_CHANGE if _only_queries(text) else 0)
    while not matches(shown, output):
        if time.monotonic() > deadline:
            raise PageFailed(f"$ {text}\n{output}\ndiffers from the page:\n{shown}")
        time.sleep(0.1)
        output = shell.run(f"{text} || true")


def _only_queries(text: str) -> bool:
    return text.startswith(("curl -s ", "grep ")) and not {"-d", "-X", "-T"} & set(text.split())


def _run_program(block: Block, folder: Path) -> None:
    """Run a Python program. One that runs until SIGTERM gets it after its first output."""
    program = folder / f"program-{block.line}.py"
    program.write_text(block.text)
    serves = "signal.SIGTERM" in block.text or "nsq.run()" in block.text
    with subprocess.Popen(
        ["python", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if select.select([process.stdout], [], [], _SECONDS_FOR_A_COMMAND)[0] and serves:
            process.send_signal(signal.SIGTERM)
        try:
            output = process.communicate(timeout=_SECONDS_FOR_A_COMMAND)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\n(it did not end)"
        if process.returncode or (serves and not output.strip()):
            raise PageFailed(f"the program ended with {process.returncode}. Its output:\n{output}")


def run_page(plan: dict[str, Any], folder: Path) -> None:
    """Run the blocks of the plan in order. Raises `PageFailed`."""
    os.environ.update(plan["environment"])
    os.chdir(plan["folder"])
    shell = Shell(folder)
    shell.run(plan["before"])
    for fields in plan["blocks"]:
        block = Block(**fields)
        try:
            run_block(shell, block, folder, pasted=plan["pasted"])
        except PageFailed as failure:
            raise PageFailed(f"{block.page}, line {block.line}:\n{failure}") from None
    shell.run("leave_all")


if __name__ == "__main__":
    shared = Path(sys.argv[1])
    try:
        run_page(json.loads((shared / "plan.json").read_text()), shared)
        (shared / "verdict").write_text("")
    except PageFailed as failure:
        (shared / "verdict").write_text(str(failure))
