"""The daemons that can be measured: how each is started and loaded, and where its result goes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lookupd_scenarios import LOOKUPD_SCENARIOS
from benchmarks.nsqd_scenarios import BODY_SIZE, MOST, SCENARIOS
from benchmarks.scenarios import Scenario
from nsq_conformance.certificates import Certificates
from nsq_conformance.daemon_process import DaemonProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Server:
    """A command line to compare, under the name the result gives it; whether it is one of `ours`."""

    name: str
    command: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """`words` are the generator's first; `effort` says of a run what the scenarios do not."""

    program: str
    scenarios: tuple[Scenario, ...]
    make: Callable[[Server, Path, Scenario], DaemonProcess]
    words: tuple[str, ...]
    effort: str
    results: Path


def _nsqd(server: Server, folder: Path, scenario: Scenario) -> DaemonProcess:
    options = [*scenario.options, *(scenario.ours if server.ours else ())]
    if scenario.tls:
        options += Certificates(folder).options
    return NsqdProcess(server.command, folder, options=options)


def _nsqlookupd(server: Server, folder: Path, scenario: Scenario) -> DaemonProcess:
    return NsqlookupdProcess(server.command, options=scenario.options)


SUBJECTS = {
    subject.program: subject
    for subject in (
        Subject(
            "nsqd",
            SCENARIOS,
            _nsqd,
            (f"-size={BODY_SIZE}", f"-most={MOST}"),
            f"bodies of {BODY_SIZE} bytes, at most {MOST:,} messages a run, unless the scenario says otherwise",
            _HERE / "RESULTS.md",
        ),
        Subject(
            "nsqlookupd",
            LOOKUPD_SCENARIOS,
            _nsqlookupd,
            ("lookupd",),
            "8 ask, each awaits its answer before the next question, unless the scenario says otherwise",
            _HERE / "RESULTS-nsqlookupd.md",
        ),
    )
}
