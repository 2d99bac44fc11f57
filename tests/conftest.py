"""What holds for every test: how long hypothesis searches, how programs start, that a report can carry any text, and
that Ctrl-C works.

The profile `dev` is quick, for while one works; `ci` searches longer and is chosen when CI is set.
"""

import os
import signal
from collections.abc import Generator

import gevent
import pytest
from hypothesis import settings

from nsq_compat import is_compiled
from tests import fork_server
from tests.packaging.release import Release

# A shell that starts the tests in the background has them, and all programs that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: on a busy machine the time of one example says nothing. The blob lets a failure be replayed anywhere.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=300, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

fork_server.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    fork_server.is_used = item.get_closest_marker("real_start") is None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Timeouts of gevent begin when its loop ran last, which was before all tests that do not use it."""
    gevent.get_hub().loop.update_now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured logs: xdist cannot send them, and clients' raw bytes bring them about."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What replaces a part of ours works where that is Python, and is deselected where it is compiled."""
    if is_compiled():
        interpreted = [item for item in items if item.get_closest_marker("interpreted")]
        items[:] = [item for item in items if item not in interpreted]
        config.hook.pytest_deselected(items=interpreted)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """One for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "release").mkdir(exist_ok=True)
    return Release(folder / "release")
