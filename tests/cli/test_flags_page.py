import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nsq_compat.cli.flags_page import flags_page
from nsq_compat.cli.kinds import BOOLEAN, DURATION, STRING
from nsq_compat.cli.options import option, table_of

ROOT = Path(__file__).parents[2]


@dataclass(slots=True, kw_only=True)
class Options:
    wait: int = option("wait-time", DURATION, 90 * 10**9, "how long, a|b")
    all: bool = option("all", BOOLEAN, False, "everything", in_file=False)
    name: str = option("name", STRING, lambda: "this machine", "`who`")


def test_a_program_has_a_row_for_each_flag():
    page = flags_page({"prog": table_of(Options)})
    assert page.partition("## prog")[2] == (
        "\n\n| Flag | In the file | Type | Default | Meaning |\n|---|---|---|---|---|\n"
        "| `--all` |  | bool |  | everything |\n"
        "| `--name` | `name` | string | the machine's | who |\n"
        "| `--wait-time` | `wait` | duration | `1m30s` | how long, a\\|b |\n"
    )


def test_the_page_in_the_documentation_is_what_the_tables_say():
    script = ROOT / "scripts" / "flags-doc"
    environment = {**os.environ, "PYTHON": sys.executable}
    page = subprocess.run([script], env=environment, capture_output=True, text=True, check=True, timeout=50).stdout
    assert (ROOT / "docs" / "flags.md").read_text() == page, "run scripts/flags-doc >docs/flags.md"
