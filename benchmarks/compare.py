"""``benchmarks/run``: run scenarios against our daemon and optional others, and compare them.

Servers alternate (A B A B), so that disturbances of the machine affect all. Prints the result, and writes it to its
page if all scenarios were run, or to ``--out``.
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks.floors import headline_rows, put_between_marks, short_rows, words_of
from benchmarks.journal import Journal
from benchmarks.machine import allow_descriptors, wait_until_idle
from benchmarks.measure import Effort, Figures, Rounds, RunFailed, build_generator, measure, version_of
from benchmarks.nsqd_aims import HEADLINES
from benchmarks.results import Circumstances, Results, render, standings_of, table
from benchmarks.scenarios import Kind, Scenario
from benchmarks.subjects import SUBJECTS, Server, Subject
from nsq_compat import __version__
from nsq_conformance.daemon_process import DaemonFailed, installed

_ROOT = Path(__file__).parent.parent
_OTHER_DESCRIPTORS = 200


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    programs = parser.add_subparsers(dest="subject", required=True)
    for subject in SUBJECTS.values():
        add_options(programs.add_parser(subject.name, help=subject.about), subject)
    words = sys.argv[1:]
    # nsqd is the default subject.
    return parser.parse_args(words if words[:1] and words[0] in {*SUBJECTS, "-h", "--help"} else ["nsqd", *words])


def add_options(parser: argparse.ArgumentParser, subject: Subject) -> None:
    names = [scenario.name for scenario in subject.scenarios]
    program = subject.program
    parser.add_argument(
        f"--{program}",
        dest="command",
        default=installed(program),
        help=f"command line of the {program} to measure (default: ours)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        help=f"command line of another {program}, or of this one with other options, side by side; more than once",
    )
    parser.add_argument(
        "--scenario", nargs="+", choices=names, metavar="NAME", help=f"only these of {', '.join(names)}"
    )
    groups = list(dict.fromkeys(scenario.group for scenario in subject.scenarios))
    parser.add_argument(
        "--group", nargs="+", choices=groups, metavar="TITLE", help=f"only those under {', '.join(map(repr, groups))}"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each scenario and server (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the messages' bodies (default: 1)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        help="seconds in total to wait for the machine to be idle (default: 0)",
    )
    parser.add_argument(
        "--figures",
        type=Path,
        help="file for the figures of each run; runs that it contains are not repeated",
    )
    parser.add_argument(
        "--out", type=Path, help=f"file for the result (default: {subject.results.name}, for all scenarios)"
    )


def server_of(program: str, command: str) -> Server:
    """The server, named after its build and its options. Raises RunFailed."""
    words = shlex.split(command)
    number, built_with = version_of(program, words).removeprefix(f"{program} v").split(" ", 1)
    ours = "built w/python" in built_with
    name = f"nsq_compat {__version__}" if ours else f"Go {program} {number}"
    compiled = ["compiled"] if "-compiled" in built_with else []
    return Server(" ".join([name, *compiled, *words[1:]]), command, ours)


def command_line(arguments: argparse.Namespace) -> str:
    """The command that repeats this run, with only the last part of programs' paths."""
    words = ["benchmarks/run", *([arguments.subject] if arguments.subject != "nsqd" else [])]
    own = SUBJECTS[arguments.subject].program
    measured = [(own, arguments.command), *(("peer", command) for command in arguments.peer)]
    for flag, command in measured:
        if command != installed(own):
            program, *rest = shlex.split(command)
            words += [f"--{flag}", shlex.join([Path(program).name, *rest])]
    for flag in ("scenario", "group"):
        if chosen := getattr(arguments, flag):
            words += [f"--{flag}", *chosen]
    for flag in ("seconds", "rounds", "seed", *(["patience"] if arguments.patience else [])):
        words += [f"--{flag}", f"{getattr(arguments, flag):g}"]
    return shlex.join(words)


def chosen(subject: Subject, arguments: argparse.Namespace) -> list[Scenario]:
    everything = not arguments.scenario and not arguments.group
    return [
        each
        for each in subject.scenarios
        if everything or each.name in (arguments.scenario or ()) or each.group in (arguments.group or ())
    ]


def split_by_descriptors(scenarios: list[Scenario]) -> tuple[list[Scenario], dict[Scenario, str]]:
    """Split into scenarios for which there are enough descriptors, and reasons for the others."""
    most = allow_descriptors()
    left_out = {
        each: f"{each.connections:,} connections; a process may have {most:,} descriptors (`ulimit -Hn`)"
        for each in scenarios
        if each.connections + _OTHER_DESCRIPTORS > most
    }
    return [each for each in scenarios if each not in left_out], left_out


def compare(
    subject: Subject,
    servers: list[Server],
    scenarios: list[Scenario],
    effort: Effort,
    patience: float,
    journal: Journal,
) -> dict[Scenario, list[Rounds]]:
    """Run the scenarios; returns the rounds of each server. Raises RunFailed and DaemonFailed."""
    results: dict[Scenario, list[Rounds]] = {}
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        generator = build_generator(Path(folder))
        for scenario in scenarios:
            figures: list[list[Figures]] = [[] for _ in servers]
            for round_number in range(effort.rounds):
                for server, its_figures in zip(servers, figures, strict=True):
                    found = journal.find(scenario, server, effort, round_number)
                    if found is None:
                        patience -= wait_until_idle(patience)
                        found = measure(generator, subject, server, scenario, effort, round_number)
                        journal.add(scenario, server, effort, round_number, found)
                        say_progress(scenario, server, found, round_number)
                    its_figures.append(found)
            results[scenario] = [Rounds(tuple(each)) for each in figures]
    return results


def say_progress(scenario: Scenario, server: Server, figures: Figures, round_number: int) -> None:
    result = {
        Kind.LATENCY: f"p99 {figures.p99:,.0f} us",
        Kind.BYSTANDER: f"p99 {figures.p99:,.0f} us, longest {figures.longest_ms:,.1f} ms",
        Kind.START: f"{figures.milliseconds:,.0f} ms",
    }.get(scenario.kind, f"{figures.rate:,.0f}/s")
    print(
        f"{scenario.name} {round_number + 1} {server.name}: {result}, {figures.cpu_us:.2f} us CPU each",
        file=sys.stderr,
        flush=True,
    )


def write(subject: Subject, arguments: argparse.Namespace, servers: list[Server], text: str, results: Results) -> None:
    """Write the result to ``--out``, or a complete one to its page, and update docs/benchmarks.md and README.md."""
    complete = not arguments.scenario and not arguments.group
    out = arguments.out or (subject.results if complete else None)
    if out is None:
        return
    out.write_text(text + "\n")
    print(f"written to {out}", file=sys.stderr)
    if subject.in_readme and out == subject.results and (found := standings_of(servers, results)):
        rows = short_rows(found)
        put_between_marks(_ROOT / "docs" / "benchmarks.md", table(rows, words_of(rows)))
        rows = headline_rows(found, HEADLINES)
        put_between_marks(_ROOT / "README.md", table(rows, range(len(rows[0]))))


def main() -> None:
    arguments = parse_arguments()
    if arguments.seconds < 1 or arguments.rounds < 1:
        sys.exit("benchmarks/run: --seconds and --rounds start at 1")
    subject = SUBJECTS[arguments.subject]
    program = subject.program
    scenarios, left_out = split_by_descriptors(chosen(subject, arguments))
    effort = Effort(arguments.seconds, arguments.rounds, arguments.seed)
    try:
        journal = Journal(arguments.figures)
        servers = [server_of(program, command) for command in (arguments.command, *arguments.peer)]
        results = compare(subject, servers, scenarios, effort, arguments.patience, journal)
    except (RunFailed, DaemonFailed) as error:
        sys.exit(f"benchmarks/run: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    versions = [version_of(program, shlex.split(server.command)) for server in servers]
    circumstances = Circumstances(command_line(arguments), effort, journal.entries, left_out)
    text = render(subject, circumstances, servers, versions, results)
    print(text)
    write(subject, arguments, servers, text, results)


if __name__ == "__main__":
    main()
