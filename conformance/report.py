"""``nsq-conformance`` (in a checkout ``conformance/run``): a table of behaviours of an nsqd, or with ``--peer`` of two.

The table is printed, and with ``--json``, ``--html`` and ``--markdown`` written to files. The exit status is 1 if the
first nsqd failed a test, and 2 if the tests could not be run.
"""

import argparse
import html
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from nsq_conformance.attached import DAEMONS
from nsq_conformance.outcomes import DIFFERS, FAILS, LEFT_OUT, OWN_TESTS, PASSES, Outcome, groups
from nsq_conformance.preflight import Unusable, check_daemons, check_file, check_packages

_KIT: Final = Path(__file__).parent
_NOT_RUN: Final = "not run"
_OUTCOMES: Final = (PASSES, DIFFERS, FAILS, LEFT_OUT)
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A behaviour, and its outcome with each implementation."""

    group: str
    behaviour: str
    difference: str
    outcomes: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    """Why it was left out, for each implementation."""


def run(daemons: dict[str, str], selected_tests: Sequence[str], processes: str) -> list[Outcome]:
    """Run these tests with these daemons. Raises Unusable if none could run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        arguments = [sys.executable, "-m", "pytest", "-c", str(_KIT / "kit.ini"), "--rootdir", str(_KIT), "-q"]
        arguments += ["--no-header", "-n", processes, "-p", "nsq_conformance.outcomes", f"--outcomes={file}"]
        arguments += [f"--{name}={text}" for name, text in daemons.items() if text]
        arguments += ["--leave-out-clients", *selected_tests]
        # The output of pytest is progress, not the report.
        subprocess.run(arguments, stdout=sys.stderr, check=False)
        if not file.exists():
            raise Unusable("pytest failed before it ran a test; see its output above.")
        return [Outcome(**each) for each in json.loads(file.read_text())]


def selected(selection: Sequence[str]) -> list[str]:
    """Convert a selection to pytest's arguments: files and tests of this folder, and names of groups."""
    arguments: list[str] = []
    for each in selection:
        path, *test = each.removeprefix("conformance/").split("::")
        if each in groups():
            arguments.append(f"--group={each}")
        elif path and (_KIT / path).exists():
            arguments.append("::".join([str(_KIT / path), *test]))
        else:
            known = "; ".join(groups())
            raise Unusable(f"{each!r} is neither a group nor a file of the tests. The groups are: {known}.")
    if all(each.startswith("--group=") for each in arguments):
        arguments += [str(_KIT), *(f"--ignore={_KIT / name}" for name in OWN_TESTS)]
    return arguments


def rows(columns: Sequence[Sequence[Outcome]]) -> list[Row]:
    """Combine the outcomes of several implementations, sorted by group."""
    found = [{(each.group, each.behaviour): each for each in column} for column in columns]
    keys = sorted(set().union(*found))
    return [
        Row(
            *key,
            next(column[key].difference for column in found if key in column),
            tuple(column[key].outcome if key in column else _NOT_RUN for column in found),
            tuple(column[key].reason if key in column else "" for column in found),
        )
        for key in keys
    ]


def summaries(table: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        counts = Counter(row.outcomes[number] for row in table)
        counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
        yield f"{name}: {len(table)} behaviours, {counted or 'none'}"
        reasons = Counter(row.reasons[number] for row in table if row.outcomes[number] == LEFT_OUT)
        yield from (f"{name}: {count} left out: {reason}" for reason, count in sorted(reasons.items()))


def as_text(table: Sequence[Row], names: Sequence[str]) -> str:
    lines = []
    for group, members in groupby(table, lambda row: row.group):
        lines += ["", f"{group:{_WIDTH}}" + "".join(f"  {name:8}" for name in names).rstrip()]
        for row in members:
            behaviour = "  " + row.behaviour.encode("unicode_escape").decode()
            outcomes = "".join(f"  {outcome:8}" for outcome in row.outcomes)
            lines.append(f"{behaviour:.{_WIDTH}}".ljust(_WIDTH) + outcomes.rstrip() + _noted(row))
    return "\n".join([*lines, "", *summaries(table, names)])


def _noted(row: Row) -> str:
    return f"  ({row.difference})" if row.difference else ""


def as_html(table: Sequence[Row], names: Sequence[str]) -> str:
    body = []
    for group, members in groupby(table, lambda row: row.group):
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body.append(f"<tr><th>{html.escape(group)}</th>{heads}</tr>")
        for row in members:
            cells = "".join(f'<td class="{each.split()[0]}">{each}</td>' for each in row.outcomes)
            body.append(f"<tr><td>{html.escape(row.behaviour + _noted(row))}</td>{cells}</tr>")
    summary = "".join(f"<p>{html.escape(line)}</p>" for line in summaries(table, names))
    return _PAGE.format(summary=summary, rows="\n".join(body))


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>NSQ conformance</title>
<style>
body {{ font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 70em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ border-bottom: 1px solid #ddd; padding: .2em .5em; text-align: left }}
.passes {{ color: #176b1c }} .differs {{ color: #8a5a00 }} .fails {{ color: #b00020; font-weight: bold }}
</style></head>
<body><h1>NSQ conformance</h1>{summary}
<table>
{rows}
</table></body></html>
"""


def as_markdown(table: Sequence[Row], names: Sequence[str]) -> str:
    """The table as Markdown, with a heading per group and a line per behaviour."""
    lines = ["# Conformance, behaviour by behaviour", "", "Written by `nsq-conformance`.", ""]
    lines += [f"- {line}" for line in summaries(table, names)]
    for group, members in groupby(table, lambda row: row.group):
        lines += ["", f"## {group[0].upper()}{group[1:]}", "", f"| Behaviour | {' | '.join(names)} |"]
        lines.append("|---" * (1 + len(names)) + "|")
        for row in members:
            behaviour = row.behaviour.encode("unicode_escape").decode().replace("|", "\\|").replace("`", "'")
            outcomes = [f"{each} *({row.difference})*" if each == DIFFERS else each for each in row.outcomes]
            lines.append(f"| {behaviour[:_WIDTH]} | {' | '.join(outcomes)} |")
    return "\n".join(lines) + "\n"


_WHICH: Final = (
    "command line of the {} to test, or the TCP and HTTP addresses of a running one: 127.0.0.1:4150,127.0.0.1:4151 "
    "(nsqadmin: HTTP only); tests that need their own daemon are left out then"
)


def _processes(text: str) -> str:
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return text


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nsq-conformance", description=__doc__)
    for name in DAEMONS:
        parser.add_argument(f"--{name}", default="", metavar="COMMAND", help=_WHICH.format(name))
    parser.add_argument("--peer", dest="peer_nsqd", default="", metavar="COMMAND", help="an nsqd to compare with")
    for name in DAEMONS[1:]:
        parser.add_argument(f"--peer-{name}", default="", metavar="COMMAND", help=f"the {name} beside it")
    parser.add_argument(
        "--names", nargs=2, default=("ours", "peer"), metavar="NAME", help="headings of the two columns"
    )
    parser.add_argument("--json", type=Path, help="file for the table as JSON")
    parser.add_argument("--html", type=Path, help="file for the table as a page")
    parser.add_argument("--markdown", type=Path, help="file for the table as Markdown")
    parser.add_argument(
        "--processes", type=_processes, default="auto", help="number of parallel processes (default: one per processor)"
    )
    selection = f"files and tests of this package, or groups (default: all): {'; '.join(groups())}"
    parser.add_argument("selection", nargs="*", help=selection)
    return parser.parse_args(arguments)


def report(options: argparse.Namespace) -> int:
    """Run the tests, and print and write the table. Raises Unusable."""
    check_packages()
    for file in (options.json, options.html, options.markdown):
        check_file(file)
    tests = selected(options.selection)
    prefixes = ("", "peer_") if options.peer_nsqd else ("",)
    implementations = [{name: getattr(options, prefix + name) for name in DAEMONS} for prefix in prefixes]
    for daemons in implementations:
        check_daemons(daemons)
    columns = [run(daemons, tests, options.processes) for daemons in implementations]
    names = options.names[: len(columns)]
    table = rows(columns)
    if not table:
        raise Unusable("No test matches the selection; see the output of pytest above.")
    print(as_text(table, names))
    if options.json:
        document = {"names": names, "behaviours": [asdict(row) for row in table]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.html:
        options.html.write_text(as_html(table, names))
    if options.markdown:
        options.markdown.write_text(as_markdown(table, names))
    return int(any(row.outcomes[0] == FAILS for row in table))


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    try:
        return report(options)
    except (Unusable, OSError) as error:
        print(f"nsq-conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
