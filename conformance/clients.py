"""Runs the official clients: one process each, with the same options and the same report.

``pynsq_client`` describes the options and the report; the programs in ``go/`` and ``nsqjs/`` have the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = dict[str, Any]


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


_ROOT = Path(__file__).parent.parent

PYNSQ = Client((sys.executable, str(Path(__file__).with_name("pynsq_client.py"))))
PATCHED_PYNSQ = Client((sys.executable, str(Path(__file__).with_name("patched_pynsq_client.py"))))
GNSQ = Client((sys.executable, "-W", "ignore", "-m", "nsq_conformance.gnsq_client"))
