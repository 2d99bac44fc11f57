"""An nsqd of your choice (the environment variable NSQD_COMMAND, or ours) and a stream of messages to be killed in."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    command = os.environ.get("NSQD_COMMAND") or installed_nsqd()
    with NsqdProcess(command, tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def options(written: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Micro-batches of two tasks, each of two chunks at least."""
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
