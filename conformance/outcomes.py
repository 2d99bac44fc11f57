"""A plugin of pytest that records the outcome of every behaviour.

``-p nsq_conformance.outcomes --outcomes file.json``

A behaviour is a test, or one case of it, named by the words of the test's name. Its group is named after the module.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsq_conformance.behaviours.limits import LIMITS

if TYPE_CHECKING:  # nsq-conformance --help works without pytest
    import pytest

PASSES: Final = "passes"
FAILS: Final = "fails"
DIFFERS: Final = "differs"
"""A failure that docs/differences.md has a row for."""
LEFT_OUT: Final = "left out"
"""The test needs its own daemon, or a client that cannot run here."""

OWN_TESTS: Final = ("test_demo.py", "test_differential.py", "test_report.py")
"""Tests of this package, which check no daemon."""

_GROUPS: Final = {
    "answers": "finish, requeue, touch",
    "negotiation": "tls",
    "reconnect": "discovery",
    "nsqadmin_figures": "admin api",
    "cluster": "discovery",
    "handover": "data directory",
    "nsqadmin": "admin api",
    "utilities": "tools",
    "http_consumers": "tools",
    "relays": "tools",
    "nsq_to_file": "tools",
    "nsqlookupd": "discovery",
    "lookup_protocol": "lookup protocol",
    "timeouts": "finish, requeue, touch",
    "heartbeats": "heartbeat",
    "pynsq": "client pynsq",
    "gnsq": "client gnsq",
    "go_nsq": "client go-nsq",
    "nsqjs": "client nsqjs",
}
_COMPRESSED: Final = re.compile(r"deflate|snappy")
_NODE = re.compile(r"(?:.*/)?test_(?P<module>\w+)\.py::(?:\w+::)*test_(?P<name>\w+)(?:\[(?P<case>.*)\])?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a behaviour. `difference` is a row of docs/differences.md, `seconds` the duration.

    `reason` says why it was left out.
    """

    group: str
    behaviour: str
    outcome: str
    difference: str
    seconds: float
    reason: str = ""


def named(node: str) -> tuple[str, str]:
    """The group and the behaviour of a test, given by its pytest node id."""
    match = _NODE.fullmatch(node)
    if match is None:
        return "other", node
    case = f": {match['case']}" if match["case"] else ""
    behaviour = match["name"].replace("_", " ") + case
    if match["module"] == "negotiation" and "authorized" in behaviour:
        return "auth", behaviour
    if match["module"] == "negotiation" and _COMPRESSED.search(case):
        return "compression", behaviour
    return _GROUPS.get(match["module"], match["module"].replace("_", " ")), behaviour


def _reason(report: "pytest.TestReport") -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def groups() -> list[str]:
    """The names of all groups."""
    tests = (file for file in Path(__file__).parent.rglob("test_*.py") if file.name not in OWN_TESTS)
    return sorted({"compression", "limits", *(named(f"{file.name}::test_it")[0] for file in tests)})


class _Collector:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        known = self._outcomes.get(report.nodeid)
        if report.when != "call" and report.passed:
            return
        expected = report.skipped and hasattr(report, "wasxfail")
        outcome = PASSES if report.passed else DIFFERS if expected else LEFT_OUT if report.skipped else FAILS
        if known is None or outcome == FAILS:
            properties = dict(report.user_properties)
            group, behaviour = named(report.nodeid)
            self._outcomes[report.nodeid] = Outcome(
                str(properties.get("group", group)),
                behaviour,
                outcome,
                str(properties.get("difference", "")),
                report.duration,
                _reason(report) if outcome == LEFT_OUT else "",
            )

    def pytest_sessionfinish(self) -> None:
        outcomes = [asdict(outcome) for _, outcome in sorted(self._outcomes.items())]
        self._path.write_text(json.dumps(outcomes, indent=1))


def pytest_addoption(parser: "pytest.Parser") -> None:
    parser.addoption("--outcomes", type=Path, help="file for the outcomes of all behaviours, as JSON")
    parser.addoption("--group", action="append", default=[], help="only the behaviours of this group; repeatable")


def pytest_collection_modifyitems(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    wanted: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        group = "limits" if item.name in LIMITS else named(item.nodeid)[0]
        item.user_properties.append(("group", group))
        (wanted if group in config.getoption("--group") else others).append(item)
    if config.getoption("--group"):
        items[:] = wanted
        config.hook.pytest_deselected(items=others)


def pytest_configure(config: "pytest.Config") -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):  # xdist's workers report to the main process
        config.pluginmanager.register(_Collector(path))
