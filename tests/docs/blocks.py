"""The blocks of code in a page of Markdown, and what a block of commands says its output is.

A block is fenced and names its language, or indented: then it is commands for a shell, or, where its lines begin with
``>>>``, a conversation with Python.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SHELL, CONSOLE, PYTHON, PYCON = "sh", "console", "python", "pycon"
RUN: Final = frozenset({SHELL, "bash", CONSOLE, PYTHON, PYCON})
"""Languages of what is run."""
SHOWN: Final = frozenset({"text", "json", "toml", "yaml"})
"""Languages of what is only shown."""

_FENCE = re.compile(r"^(\s*)```(.*)$")
_INDENT = "    "
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page; `line` is that of its first line of code, counted from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.first_line}"


@dataclass(frozen=True, slots=True)
class Command:
    """Something to run, and the output the page shows for it; None where it shows none."""

    text: str
    shown: str | None = None


def blocks(page: str, markdown: str) -> Iterator[Block]:
    """In the order of the page."""
    lines = markdown.split("\n")
    number = 0
    while number < len(lines):
        if fence := _FENCE.match(lines[number]):
            begin = number + 1
            number = next(place for place in range(begin, len(lines)) if lines[place].strip() == "```")
            indent = len(fence[1])
            yield Block(page, begin + 1, fence[2].strip(), "\n".join(line[indent:] for line in lines[begin:number]))
        elif lines[number].startswith(_INDENT) and (number == 0 or not lines[number - 1].strip()):
            begin = number
            while number < len(lines) and (lines[number].startswith(_INDENT) or not lines[number].strip()):
                number += 1
            text = "\n".join(line[len(_INDENT) :] for line in lines[begin:number]).rstrip()
            yield Block(page, begin + 1, PYCON if text.startswith(">>>") else SHELL, text)
            continue
        number += 1


def commands(block: Block) -> list[Command]:
    """A block for a shell as what is typed one after the other."""
    if block.language != CONSOLE:
        return [Command(block.text)]
    found: list[Command] = []
    lines = block.text.split("\n")
    if not lines[0].startswith(_PROMPT):
        raise ValueError(f"{block}: a console begins with a prompt")
    while lines:
        typed = [lines.pop(0)[len(_PROMPT) :]]
        while typed[-1].endswith("\\"):
            typed.append(lines.pop(0))
        shown: list[str] = []
        while lines and not lines[0].startswith(_PROMPT):
            shown.append(lines.pop(0))
        found.append(Command("\n".join(typed), "\n".join(shown)))
    return found


def is_as_shown(shown: str, said: str) -> bool:
    """Whether output is what a page shows: ``...`` stands for anything in a line, as a line for any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n"
        for line in shown.split("\n")
    )
    return re.fullmatch(pattern, said.rstrip("\n") + "\n") is not None
