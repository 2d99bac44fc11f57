"""The subjects of measurements: how each daemon is started and loaded, and the page of its result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bystander_scenarios import BYSTANDER_SCENARIOS
from benchmarks.lookupd_scenarios import LOOKUPD_SCENARIOS
from benchmarks.nsqd_scenarios import BODY_SIZE, MAX_MESSAGES, SCENARIOS
from benchmarks.scenarios import Scenario
from benchmarks.traffic_scenarios import TRAFFIC_SCENARIOS
from nsq_conformance.certificates import Certificates
from nsq_conformance.daemon_process import DaemonProcess, own_host
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

_HERE = Path(__file__).parent
_AUTH_PORT = 4180


@dataclass(frozen=True, slots=True)
class Server:
    """A command line to measure, and its name in the result. `ours`: whether it is one of ours."""

    name: str
    command: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """`name` is the command's word, `about` its help. `words` are the generator's first arguments. `effort` describes
    runs in the result. `in_readme`: README.md and docs/benchmarks.md show its floors and aims.
    """

    name: str
    about: str
    program: str
    scenarios: tuple[Scenario, ...]
    make: Callable[[Server, Path, Scenario], DaemonProcess]
    words: tuple[str, ...]
    effort: str
    results: Path
    in_readme: bool = False


def _nsqd(server: Server, folder: Path, scenario: Scenario) -> DaemonProcess:
    options = [*scenario.options, *(scenario.ours if server.ours else ())]
    if scenario.tls:
        options += Certificates(folder).options
    if scenario.auth:
        options.append(f"--auth-http-address={own_host()}:{_AUTH_PORT}")
    return NsqdProcess(server.command, folder, options=options)


def _nsqlookupd(server: Server, folder: Path, scenario: Scenario) -> DaemonProcess:
    return NsqlookupdProcess(server.command, options=scenario.options)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "nsqd",
            "measure an nsqd",
            "nsqd",
            SCENARIOS,
            _nsqd,
            (f"-size={BODY_SIZE}", f"-most={MAX_MESSAGES}"),
            f"bodies of {BODY_SIZE} bytes, at most {MAX_MESSAGES:,} messages a run, unless the scenario says otherwise",
            _HERE / "RESULTS.md",
            in_readme=True,
        ),
        Subject(
            "traffic",
            "measure an nsqd with shapes of real traffic, and through go-nsq",
            "nsqd",
            TRAFFIC_SCENARIOS,
            _nsqd,
            (f"-size={BODY_SIZE}", f"-most={MAX_MESSAGES}"),
            f"bodies of {BODY_SIZE} bytes, at most {MAX_MESSAGES:,} messages a run, unless the scenario says otherwise",
            _HERE / "RESULTS-traffic.md",
        ),
        Subject(
            "bystander",
            "measure how long a quiet client of an nsqd waits while other connections abuse it",
            "nsqd",
            BYSTANDER_SCENARIOS,
            _nsqd,
            ("bystander", f"-size={BODY_SIZE}"),
            f"a PUB of {BODY_SIZE} bytes every 5 ms, from half a second before the abuse until half a second after its"
            " end",
            _HERE / "RESULTS-bystander.md",
        ),
        Subject(
            "nsqlookupd",
            "measure an nsqlookupd",
            "nsqlookupd",
            LOOKUPD_SCENARIOS,
            _nsqlookupd,
            ("lookupd",),
            "8 clients, each waits for its answer before the next query, unless the scenario says otherwise",
            _HERE / "RESULTS-nsqlookupd.md",
        ),
    )
}
