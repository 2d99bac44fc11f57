"""Types a page's commands into one shell, one after the other, and looks at what they say. Runs inside its machine.

``python conductor.py FOLDER``: reads ``plan.json`` there, writes ``verdict``: nothing if all went as the page says, or
what did not.
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

from tests.docs.blocks import CONSOLE, PYCON, PYTHON, Block, commands, is_as_shown

LISTENERS: Final = frozenset({"nsqd", "nsqlookupd", "nsqadmin", "nsq_pubsub", "nsq_pull"})
"""Programs that somebody at a terminal would see listening before typing the next command."""
_STAYS: Final = re.compile(
    r"^(nsqd|nsqlookupd|nsqadmin|nsq_pubsub|nsq_pull|nsq_to_(file|http|nsq)|nsq_tail|curl)( |$)(?!.*(&$|\|))"
)
_ENDS: Final = re.compile(r"--check-config|--version|--help|--n=|^curl (?!-N)")
_COMMENT: Final = re.compile(r"\s+#\s.*$")
_TERMINALS: Final = """
kept=
# Ctrl-C in the terminals where a program runs; nothing that stays may have failed.
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


_SECONDS_FOR_ONE: Final = 150.0
_SECONDS_FOR_NEWS: Final = 60.0
_LISTENING: Final = "0A"


class Astray(Exception):
    """Something was not as the page says."""


class Shell:
    """One bash, as the reader has it: variables, folder and background jobs last from block to block."""

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
        """What it says, on both outputs, until it is done; what it leaves running listens then. Raises `Astray`."""
        self._count += 1
        typed, said = (self._folder / f"{self._count}.{suffix}" for suffix in ("sh", "out"))
        typed.write_text(f"{text}\n")
        fd = self._status_fd
        self._type(f'source {typed} {fd}>&- >{said} 2>&1 </dev/null; echo "$?" >&{fd}')
        ended = bool(select.select([self._statuses], [], [], _SECONDS_FOR_ONE)[0]) and bool(self._statuses.read(64))
        if not ended:
            raise Astray(f"{text}\nfailed, or took too long; it said\n{said.read_text(errors='replace')}")
        self._wait_for_listeners()
        return said.read_text(errors="replace")

    def _type(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()

    def _wait_for_listeners(self) -> None:
        deadline = time.monotonic() + _SECONDS_FOR_NEWS
        while busy := [name for pid, name in self._about_to_listen() if not _listens(pid)]:
            if time.monotonic() > deadline:
                raise Astray(f"does not listen: {busy}")
            time.sleep(0.02)

    def _about_to_listen(self) -> Iterator[tuple[int, str]]:
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            programs = {Path(word).name for word in words[:2]}
            # A job that is still bash is about to become a program; while it does, its words are not to be read.
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
        return True  # it has ended, which is another's business
    return any(f"socket:[{inode}]" in held for inode in listening)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # closed meanwhile


def follow(shell: Shell, block: Block, folder: Path) -> None:
    """Raises `Astray`."""
    if block.language == PYTHON:
        _run_program(block, folder)
    elif block.language == PYCON:
        (folder / "session.txt").write_text(f"{block.text}\n")
        shell.run(f"python -m doctest {folder}/session.txt")
    else:
        for command in commands(block):
            typed = f"{command.text} || true" if _only_asks(command.text) else command.text
            said = [shell.run(piece) for piece in in_terminals(typed)]
            if block.language == CONSOLE:
                _compare(shell, command.text, command.shown or "", "".join(said))


def in_terminals(text: str) -> list[str]:
    """What to type, one after the other: what stays in the foreground gets a terminal of its own.

    What did so in earlier blocks is left then.
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


def _compare(shell: Shell, text: str, shown: str, said: str) -> None:
    """What is only asked for may take a moment to become so."""
    deadline = time.monotonic() + (_SECONDS_FOR_NEWS if _only_asks(text) else 0)
    while not is_as_shown(shown, said):
        if time.monotonic() > deadline:
            raise Astray(f"$ {text}\n{said}\nis not what is shown:\n{shown}")
        time.sleep(0.1)
        said = shell.run(f"{text} || true")


def _only_asks(text: str) -> bool:
    return text.startswith(("curl -s ", "grep ")) and not {"-d", "-X", "-T"} & set(text.split())


def _run_program(block: Block, folder: Path) -> None:
    """One that works until it is told to stop is told so when it has said something."""
    program = folder / f"program-{block.line}.py"
    program.write_text(block.text)
    serves = "signal.SIGTERM" in block.text or "nsq.run()" in block.text
    with subprocess.Popen(
        ["python", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if select.select([process.stdout], [], [], _SECONDS_FOR_ONE)[0] and serves:
            process.send_signal(signal.SIGTERM)
        try:
            said = process.communicate(timeout=_SECONDS_FOR_ONE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"{process.communicate()[0]}\nand did not end"
        if process.returncode or (serves and not said.strip()):
            raise Astray(f"the program ended with {process.returncode} and said\n{said}")


def conduct(plan: dict[str, Any], folder: Path) -> None:
    """Raises `Astray`."""
    os.environ.update(plan["environment"])
    os.chdir(plan["folder"])
    shell = Shell(folder)
    shell.run(plan["before"])
    for each in plan["blocks"]:
        block = Block(**each)
        try:
            follow(shell, block, folder)
        except Astray as failure:
            raise Astray(f"{block.page}, line {block.line}:\n{failure}") from None
    shell.run("leave_all")


if __name__ == "__main__":
    shared = Path(sys.argv[1])
    try:
        conduct(json.loads((shared / "plan.json").read_text()), shared)
        (shared / "verdict").write_text("")
    except Astray as failure:
        (shared / "verdict").write_text(str(failure))
