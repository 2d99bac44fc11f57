"""The code blocks of a Markdown page, with the commands and the outputs that a console block shows.

A fenced block names its language. An indented block holds shell commands, or a Python session if it begins with
``>>>``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SHELL, CONSOLE, PYTHON, PYCON = "sh", "console", "python", "pycon"
RUN: Final = frozenset({SHELL, "bash", CONSOLE, PYTHON, PYCON})
"""Languages of blocks that are run."""
SHOWN: Final = frozenset({"text", "json", "toml", "yaml", "sql"})
"""Languages of blocks that are not run."""

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
    """A command, and the output that the page shows for it. None if the page shows no output."""

    text: str
    shown: str | None = None


def blocks(page: str, markdown: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
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
    """The commands of a shell or console block, in order."""
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


def matches(shown: str, output: str) -> bool:
    """Compare output with what a page shows. ``...`` stands for any text in a line; alone, for any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n"
        for line in shown.split("\n")
    )
    return re.fullmatch(pattern, output.rstrip("\n") + "\n") is not None
