"""A plugin of pytest that writes down what came of every behaviour: ``-p conformance.outcomes --outcomes file.json``.

A behaviour is a test or one case of it, in the words of its name; its group is the module, in the words of a user.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

PASSES: Final = "passes"
FAILS: Final = "fails"
DIFFERS: Final = "differs"
"""A failure that docs/differences.md has a row for."""

_GROUPS: Final = {
    "answers": "finish, requeue, touch",
    "negotiation": "tls, compression",
    "cluster": "discovery",
    "handover": "data directory",
    "nsqadmin": "admin api",
    "utilities": "tools",
    "doors": "tools",
    "relays": "tools",
    "nsq_to_file": "tools",
    "nsqlookupd": "discovery",
    "lookup_protocol": "lookup protocol",
    "timeouts": "finish, requeue, touch",
    "heartbeats": "heartbeat",
    "pynsq": "client pynsq",
    "go_nsq": "client go-nsq",
    "nsqjs": "client nsqjs",
}
_NODE = re.compile(r"(?:.*/)?test_(?P<module>\w+)\.py::(?:\w+::)*test_(?P<name>\w+)(?:\[(?P<case>.*)\])?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one behaviour. `difference` is the name of its row, `seconds` how long it took."""

    group: str
    behaviour: str
    outcome: str
    difference: str
    seconds: float


def named(node: str) -> tuple[str, str]:
    """The group and the behaviour a test of pytest stands for."""
    match = _NODE.fullmatch(node)
    if match is None:
        return "other", node
    case = f": {match['case']}" if match["case"] else ""
    return _GROUPS.get(match["module"], match["module"].replace("_", " ")), match["name"].replace("_", " ") + case


class _Collector:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._outcomes.get(report.nodeid)
        if report.when != "call" and not report.failed:
            return
        expected = report.skipped and hasattr(report, "wasxfail")
        outcome = PASSES if report.passed else DIFFERS if expected else FAILS
        if known is None or outcome == FAILS:
            difference = str(dict(report.user_properties).get("difference", ""))
            self._outcomes[report.nodeid] = Outcome(*named(report.nodeid), outcome, difference, report.duration)

    def pytest_sessionfinish(self) -> None:
        outcomes = [asdict(outcome) for _, outcome in sorted(self._outcomes.items())]
        self._path.write_text(json.dumps(outcomes, indent=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="file for what came of every behaviour, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):  # workers of xdist report to who started them
        config.pluginmanager.register(_Collector(path))
