"""Two pages agree with the code. docs/architecture.md: its hot list is up to date, and the files and names it mentions
exist. docs/guarantees.md: it names all fault tests, and only existing ones.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.sandbox import ROOT

PAGE = ROOT / "docs" / "architecture.md"
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
BEGIN, END = "<!-- Written by scripts/hot-list. -->", "<!-- The end"
SOURCES = [*(ROOT / "nsq_compat").rglob("*.py"), *(ROOT / "spark" / "pyspark_nsq").glob("*.py")]


def files_named(name: str) -> list[Path]:
    return [path for path in SOURCES if f"/{path}".endswith(f"/{name}")]


def test_the_hot_list_is_up_to_date(tmp_path: Path):
    page = tmp_path / "architecture.md"
    shutil.copy(PAGE, page)
    subprocess.run([sys.executable, ROOT / "scripts" / "hot-list", page], check=True, timeout=50)
    assert PAGE.read_text("utf-8") == page.read_text("utf-8"), "run scripts/hot-list"


def test_every_hot_comment_is_in_the_list():
    comments = sum(file.read_text("utf-8").count("# Hot: ") for file in (ROOT / "nsq_compat").rglob("*.py"))
    _, _, listed = PAGE.read_text("utf-8").partition(BEGIN)
    rows = [line for line in listed.partition(END)[0].splitlines() if line.startswith("| `")]
    assert comments >= len(rows) > 0.9 * comments, "a function may have two comments"


def test_every_file_that_the_page_mentions_exists():
    mentioned = set(re.findall(r"`([a-z_/]+\.py)`", PAGE.read_text("utf-8").partition(BEGIN)[0])) - {"__init__.py"}
    assert len(mentioned) > 40
    assert [name for name in sorted(mentioned) if not files_named(name)] == []


def test_every_function_and_class_that_the_page_places_in_a_file_is_there():
    missing = []
    rows = [line for line in PAGE.read_text("utf-8").partition(BEGIN)[0].splitlines() if line.startswith("| Where")]
    for row in rows:
        for file, name in re.findall(r"`([a-z_/]+\.py)`, `([A-Za-z_.]+)`", row):
            last = name.rpartition(".")[2]
            if not any(re.search(rf"(def|class) {last}\b", path.read_text("utf-8")) for path in files_named(file)):
                missing.append((file, name))
    assert len(rows) > 10
    assert missing == []


# --- docs/guarantees.md -----------------------------------------------------------------------------------------------


def test_every_fault_test_is_named():
    written = {path.name for path in (ROOT / "tests" / "faults").glob("test_*.py")}
    assert written - set(re.findall(r"test_\w+\.py", GUARANTEES)) == set()


def test_every_named_test_exists():
    for name in re.findall(r"`((?:[\w/]+/)?test_[\w*]+\.py)`", GUARANTEES):
        assert list(ROOT.glob(name if "/" in name else f"tests/**/{name}")), name


def test_faults_are_numbered_without_gaps():
    numbers = {int(number) for number in re.findall(r"^- \*\*F(\d+)\b", GUARANTEES, re.MULTILINE)}
    assert numbers == set(range(1, max(numbers) + 1))
