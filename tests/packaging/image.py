"""Reads a container file, and converts its steps to a script that runs without a container engine.

Only instructions that our file uses are supported; others are errors.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser


@dataclass(slots=True)
class Stage:
    """A stage, from FROM on: its instructions in order, and the settings of its containers."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def only(self, instruction: str) -> str:
        """The value of an instruction that occurs once."""
        [value] = [value for name, value in self.steps if name == instruction]
        return value


class Image:
    """The stages of a container file; containers run the last one."""

    def __init__(self, path: Path, folder: Path) -> None:
        parser = DockerfileParser(path=str(folder))
        parser.content = path.read_text()
        self.labels: dict[str, str] = dict(parser.labels)
        self.arguments: dict[str, str] = {}
        self.stages: list[Stage] = []
        for step in parser.structure:
            self._take(step)

    @property
    def command(self) -> list[str]:
        return _words(self.stages[-1].only("CMD"))

    @property
    def health_check(self) -> list[str]:
        _, _, command = self.stages[-1].only("HEALTHCHECK").partition("CMD ")
        return _words(command)

    def sources(self) -> list[str]:
        """The files that are copied from the checkout."""
        return [
            word
            for stage in self.stages
            for name, value in stage.steps
            if name == "COPY" and not value.startswith("--from=")
            for word in shlex.split(value)[:-1]
        ]

    def script(self, stage: Stage, checkout: str) -> Iterator[str]:
        """The steps of a stage as a bash script for root."""
        yield "cd /"
        for name, value in stage.steps:
            if name == "WORKDIR":
                yield f"mkdir -p {value}; cd {value}"
            elif name == "COPY" and not value.startswith("--from="):
                *sources, target = shlex.split(value)
                yield f"cp -r {' '.join(f'{checkout}/{source}' for source in sources)} {target}"
            elif name == "RUN":
                yield value

    def _take(self, step: dict[str, Any]) -> None:
        name, value = step["instruction"], step["value"]
        if name == "COMMENT":
            return
        if name == "ARG":
            variable, _, default = value.partition("=")
            self.arguments[variable] = default
        elif name == "FROM":
            base, _, _ = value.partition(" ")
            self.stages.append(Stage(re.sub(r"\$\{(\w+)\}", lambda match: self.arguments[match[1]], base)))
        else:
            if name not in _KNOWN:
                raise ValueError(f"unsupported instruction: {name}")
            stage = self.stages[-1]
            stage.steps.append((name, value))
            if name == "ENV":
                stage.environment |= dict(word.split("=", 1) for word in shlex.split(value))


_KNOWN = frozenset(
    {"CMD", "COPY", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)


def _words(text: str) -> list[str]:
    words: list[str] = json.loads(text)
    return words
