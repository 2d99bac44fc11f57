"""``nsq-conformance`` (in a checkout ``conformance/run``): a table of behaviours of an nsqd, or with ``--peer`` of two.

The table is printed, and with ``--json``, ``--html`` and ``--markdown`` written to files. The exit status is 1 if the
first nsqd failed a test.
"""

import argparse
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from nsq_conformance.daemons import DAEMONS
from nsq_conformance.outcomes import DIFFERS, FAILS, LEFT_OUT, PASSES, Outcome

_KIT: Final = Path(__file__).parent
_NOT_RUN: Final = "not run"
_OUTCOMES: Final = (PASSES, DIFFERS, FAILS, LEFT_OUT)
_WIDTH: Final = 100
_OWN_TESTS: Final = ("test_demo.py", "test_differential.py", "test_report.py")
_CLIENTS: Final = {"gonsq": ("GO", "go"), "nsqjs": ("", "npm")}
"""Clients in other languages: the environment variable and the program of their language."""


@dataclass(frozen=True, slots=True)
class Row:
    """A behaviour, and its outcome with each implementation."""

    group: str
    behaviour: str
    difference: str
    outcomes: tuple[str, ...]


def run(daemons: dict[str, str], selection: Sequence[str], processes: str) -> list[Outcome]:
    """Run all tests, or the selected ones, with these daemons. Raises ChildProcessError if none could run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        arguments = [sys.executable, "-m", "pytest", "-c", str(_KIT / "kit.ini"), "--rootdir", str(_KIT), "-q"]
        arguments += ["--no-header", "-n", processes, "-p", "nsq_conformance.outcomes", f"--outcomes={file}"]
        arguments += [f"--{name}={text}" for name, text in daemons.items() if text]
        arguments += [f"--without={client}" for client in missing_clients()]
        # The output of pytest is progress, not the report.
        subprocess.run([*arguments, *selected(selection)], stdout=sys.stderr, check=False)
        if not file.exists():
            raise ChildProcessError("pytest failed before it ran a test; see its output above")
        return [Outcome(**each) for each in json.loads(file.read_text())]


def selected(selection: Sequence[str]) -> list[str]:
    """Convert a selection to pytest's arguments: files and tests of this folder; other words are names of groups."""
    arguments: list[str] = []
    for each in selection:
        path, *test = each.removeprefix("conformance/").split("::")
        arguments.append("::".join([str(_KIT / path), *test]) if (_KIT / path).exists() else f"--group={each}")
    if all(each.startswith("--group=") for each in arguments):
        arguments += [str(_KIT), *(f"--ignore={_KIT / name}" for name in _OWN_TESTS)]
    return arguments


def missing_clients() -> list[str]:
    """The clients whose language is not installed; the table shows them as left out."""
    beside_python = str(Path(sys.executable).parent)
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), beside_python])
    return [
        client
        for client, (variable, program) in _CLIENTS.items()
        if not os.environ.get(variable) and shutil.which(program, path=places) is None
    ]


def rows(columns: Sequence[Sequence[Outcome]]) -> list[Row]:
    """Combine the outcomes of several implementations, sorted by group."""
    found = [{(each.group, each.behaviour): each for each in column} for column in columns]
    keys = sorted(set().union(*found))
    return [
        Row(
            *key,
            next(column[key].difference for column in found if key in column),
            tuple(column[key].outcome if key in column else _NOT_RUN for column in found),
        )
        for key in keys
    ]


def summaries(table: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        counts = Counter(row.outcomes[number] for row in table)
        counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
        yield f"{name}: {len(table)} behaviours, {counted or 'none'}"


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
    parser.add_argument("--processes", default="auto", help="number of parallel processes (default: one per processor)")
    parser.add_argument("selection", nargs="*", help="groups, or files and tests of this package (default: all)")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    prefixes = ("", "peer_") if options.peer_nsqd else ("",)
    columns = [
        run({name: getattr(options, prefix + name) for name in DAEMONS}, options.selection, options.processes)
        for prefix in prefixes
    ]
    names = options.names[: len(columns)]
    table = rows(columns)
    print(as_text(table, names))
    if options.json:
        document = {"names": names, "behaviours": [asdict(row) for row in table]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.html:
        options.html.write_text(as_html(table, names))
    if options.markdown:
        options.markdown.write_text(as_markdown(table, names))
    return int(any(row.outcomes[0] == FAILS for row in table) or not table)


if __name__ == "__main__":
    sys.exit(main())
