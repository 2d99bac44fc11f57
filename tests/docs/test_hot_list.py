"""The table of hot functions in docs/architecture.md agrees with the comments in the code."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.sandbox import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def test_the_hot_list_is_up_to_date(tmp_path: Path):
    page = tmp_path / "architecture.md"
    shutil.copy(PAGE, page)
    subprocess.run([sys.executable, ROOT / "scripts" / "hot-list", page], check=True, timeout=50)
    assert PAGE.read_text("utf-8") == page.read_text("utf-8"), "run scripts/hot-list"


def test_every_hot_comment_is_in_the_list():
    comments = sum(file.read_text("utf-8").count("# Hot: ") for file in (ROOT / "nsq_compat").rglob("*.py"))
    _, _, listed = PAGE.read_text("utf-8").partition("<!-- Written by scripts/hot-list. -->")
    rows = [line for line in listed.partition("<!-- The end")[0].splitlines() if line.startswith("| `")]
    assert comments >= len(rows) > 0.9 * comments, "a function may have two comments"
