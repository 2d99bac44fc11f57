"""Fixtures for crash tests: an nsqd (NSQD_COMMAND, or ours), a stream of messages, and tables in pytest's summary."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.spark.crash.running import Kills, Work, lines

NSQD = os.environ.get("NSQD_COMMAND") or installed_nsqd()


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    with NsqdProcess(NSQD, tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def options(written: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Options for micro-batches of two tasks, each with at least two chunks."""
    (tmp_path / "spool").mkdir()
    return written | {
        "spoolDir": str(tmp_path / "spool"),
        "maxMessagesPerTrigger": "4000",
        "maxInFlight": "1000",
        "partitionsPerNsqd": "2",
        "msgTimeoutMs": "3000",
        "idleTimeoutMs": "300",
        "spoolRetainBatches": "0",
    }


Tell = Callable[[Kills | Work], None]


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Add a row to the tables, even if the test fails afterwards."""
    # Workers of pytest-xdist can send cells, but no objects.
    return lambda found: record_property(type(found).__name__, found.cells())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    told = [each for report in reports if report.when == "call" for each in report.user_properties]
    kills, works = ([cells for name, cells in told if name == kind.__name__] for kind in (Kills, Work))
    if kills or works:
        terminalreporter.section("Spark and NSQ")
        terminalreporter.line(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {NSQD}")
        for line in lines(kills, works):
            terminalreporter.line(line)
