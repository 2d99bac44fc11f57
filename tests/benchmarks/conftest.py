"""Fixtures: the load generator, built once, one nsqd for all scenarios with the same options, and incorrect ones."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.measure import build_generator
from benchmarks.scenarios import Scenario
from benchmarks.subjects import SUBJECTS, Server
from nsq_conformance.daemon_process import DaemonProcess, installed

OURS = Server("ours", installed("nsqd"), ours=True)

PATCHED = """
import time

from nsq_compat.nsqd.main import main
from nsq_compat.queue.topic import Topic

publish = Topic.publish

def patched(self, bodies, now, now_ns, defer=0.0):
    {before}
    return publish(self, {bodies}, now, now_ns, {defer})

Topic.publish = patched
main()
"""

NsqdThat = Callable[..., Server]


@pytest.fixture
def nsqd_that(tmp_path: Path) -> NsqdThat:
    """An nsqd with another `Topic.publish`: what it does first, and the bodies and the delay that it publishes."""

    def patched(before: str = "pass", bodies: str = "bodies", defer: str = "defer") -> Server:
        program = tmp_path / "patched"
        program.write_text(PATCHED.format(before=before, bodies=bodies, defer=defer))
        return Server("patched", shlex.join([sys.executable, str(program)]), ours=True)

    return patched


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_generator(tmp_path_factory.mktemp("generator"))


@pytest.fixture(scope="module")
def nsqd_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Scenario], DaemonProcess]]:
    running: dict[tuple[object, ...], DaemonProcess] = {}
    with ExitStack() as stack:

        def find(scenario: Scenario) -> DaemonProcess:
            key = (scenario.options, scenario.ours, scenario.tls, scenario.auth)
            if key not in running:
                daemon = SUBJECTS["nsqd"].make(OURS, tmp_path_factory.mktemp("nsqd"), scenario)
                running[key] = stack.enter_context(daemon)
            _delete_topics(running[key])
            return running[key]

        yield find


def _delete_topics(daemon: DaemonProcess) -> None:
    """Delete topics, because some runs leave theirs."""
    for topic in daemon.asks("GET", "/stats?format=json").json()["topics"] or ():
        assert daemon.asks("POST", f"/topic/delete?topic={topic['topic_name']}").status == 200
