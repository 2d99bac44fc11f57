"""Reads our container file, and converts its steps to a script that runs without a container engine."""

import io
import json
import shlex
from collections.abc import Iterator

from dockerfile_parse import DockerfileParser

from tests.packaging.release import ROOT

CONTAINER = ROOT / "contrib" / "container"
_SUPPORTED = frozenset(
    {"CMD", "COPY", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)

Step = tuple[str, str]


class Image:
    """The stages, each with its instructions in order. Containers run the last one; the settings are those of it."""

    def __init__(self) -> None:
        parser = DockerfileParser(fileobj=io.BytesIO((CONTAINER / "Containerfile").read_bytes()))
        self.bases: list[str] = parser.parent_images
        self.labels: dict[str, str] = parser.labels
        self.environment: dict[str, str] = parser.envs
        self.command: list[str] = json.loads(parser.cmd)
        self.stages: list[list[Step]] = []
        for step in parser.structure:
            name, value = step["instruction"], step["value"]
            if name == "FROM":
                self.stages.append([])
            elif name not in ("ARG", "COMMENT"):
                assert name in _SUPPORTED, f"unsupported instruction: {name}"
                self.stages[-1].append((name, value))

    def only(self, instruction: str) -> str:
        """The value of an instruction that the last stage has once."""
        [value] = [value for name, value in self.stages[-1] if name == instruction]
        return value

    @property
    def health_check(self) -> list[str]:
        words: list[str] = json.loads(self.only("HEALTHCHECK").partition("CMD ")[2])
        return words

    def sources(self) -> list[str]:
        """The files that are copied from the checkout."""
        steps = [step for stage in self.stages for step in stage]
        return [word for step in steps if _copies(step) for word in shlex.split(step[1])[:-1]]

    def script(self, checkout: str) -> Iterator[str]:
        """The steps of all stages as a bash script for root."""
        for stage in self.stages:
            yield "cd /"
            for name, value in stage:
                if name == "WORKDIR":
                    yield f"mkdir -p {value}; cd {value}"
                elif _copies((name, value)):
                    *sources, target = shlex.split(value)
                    yield f"cp -r {' '.join(f'{checkout}/{source}' for source in sources)} {target}"
                elif name == "RUN":
                    yield value


def _copies(step: Step) -> bool:
    """Whether it copies from the checkout, and not from another stage."""
    return step[0] == "COPY" and not step[1].startswith("--from=")
