"""``benchmarks/run``: every scenario against our daemon and, if there are any, others; A B A B, so that what disturbs
the machine disturbs all. Prints the result, and writes it down when all scenarios were run or ``--out`` says where.
"""

import argparse
import os
import resource
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import await_rest
from benchmarks.measure import Effort, Figures, Rounds, RunFailed, Server, build_generator, measure, version_of
from benchmarks.results import Circumstances, render
from benchmarks.scenarios import Kind, Scenario
from benchmarks.subjects import SUBJECTS, Subject
from nsq_compat import __version__
from nsq_conformance.daemon_process import DaemonFailed, installed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    for subject in SUBJECTS.values():
        add_options(programs.add_parser(subject.program, help=f"measure an {subject.program}"), subject)
    words = sys.argv[1:]
    # Most of the time it is nsqd.
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
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each scenario and server (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the messages' bodies (default: 1)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        help="seconds, all in all, to wait for the machine to be idle (default: 0)",
    )
    parser.add_argument(
        "--out", type=Path, help=f"file for the result (default: {subject.results.name}, for all scenarios)"
    )


def server_of(program: str, command: str) -> Server:
    """Named after what it says it is built with, and its options. Raises RunFailed."""
    words = shlex.split(command)
    number, built_with = version_of(program, words).removeprefix(f"{program} v").split(" ", 1)
    ours = "built w/python" in built_with
    name = f"nsq_compat {__version__}" if ours else f"Go {program} {number}"
    return Server(" ".join([name, *words[1:]]), command)


def command_line(arguments: argparse.Namespace) -> str:
    """The command that repeats this run; of programs only the last part of their path, machines differ."""
    words = ["benchmarks/run", *([arguments.program] if arguments.program != "nsqd" else [])]
    measured = [(arguments.program, arguments.command), *(("peer", command) for command in arguments.peer)]
    for flag, command in measured:
        if command != installed(arguments.program):
            program, *rest = shlex.split(command)
            words += [f"--{flag}", shlex.join([Path(program).name, *rest])]
    if arguments.scenario:
        words += ["--scenario", *arguments.scenario]
    for flag in ("seconds", "rounds", "seed", *(["patience"] if arguments.patience else [])):
        words += [f"--{flag}", f"{getattr(arguments, flag):g}"]
    return shlex.join(words)


def compare(
    subject: Subject, servers: list[Server], scenarios: list[Scenario], effort: Effort, patience: float
) -> dict[Scenario, list[Rounds]]:
    """For each scenario the rounds of each server. Raises RunFailed and DaemonFailed."""
    results: dict[Scenario, list[Rounds]] = {}
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        generator = build_generator(Path(folder))
        for scenario in scenarios:
            figures: list[list[Figures]] = [[] for _ in servers]
            for round_number in range(effort.rounds):
                for server, its_figures in zip(servers, figures, strict=True):
                    patience -= await_rest(patience)
                    its_figures.append(measure(generator, subject, server, scenario, effort, round_number))
                    say_progress(scenario, server, its_figures[-1], round_number)
            results[scenario] = [Rounds(tuple(each)) for each in figures]
    return results


def say_progress(scenario: Scenario, server: Server, figures: Figures, round_number: int) -> None:
    result = f"p99 {figures.p99:,.0f} us" if scenario.kind is Kind.LATENCY else f"{figures.rate:,.0f}/s"
    print(
        f"{scenario.name} {round_number + 1} {server.name}: {result}, {figures.cpu_us:.2f} us CPU each",
        file=sys.stderr,
        flush=True,
    )


def allow_many_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    arguments = parse_arguments()
    if arguments.seconds < 1 or arguments.rounds < 1:
        sys.exit("benchmarks/run: --seconds and --rounds start at 1")
    allow_many_connections()
    subject = SUBJECTS[arguments.program]
    program = subject.program
    scenarios = [each for each in subject.scenarios if not arguments.scenario or each.name in arguments.scenario]
    effort = Effort(arguments.seconds, arguments.rounds, arguments.seed)
    circumstances = Circumstances(command_line(arguments), effort, os.getloadavg()[0])
    try:
        servers = [server_of(program, command) for command in (arguments.command, *arguments.peer)]
        results = compare(subject, servers, scenarios, effort, arguments.patience)
    except (RunFailed, DaemonFailed) as error:
        sys.exit(f"benchmarks/run: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    versions = [version_of(program, shlex.split(server.command)) for server in servers]
    text = render(subject, circumstances, servers, versions, results)
    print(text)
    out = arguments.out or (None if arguments.scenario else subject.results)
    if out is not None:
        out.write_text(text + "\n")
        print(f"written to {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
