"""docs/guarantees.md names all fault tests, and only existing ones."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")


def test_every_fault_test_is_named():
    written = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert written - set(re.findall(r"test_\w+\.py", PAGE)) == set()


def test_every_named_test_exists():
    for name in re.findall(r"`((?:[\w/]+/)?test_[\w*]+\.py)`", PAGE):
        assert list(ROOT.glob(name if "/" in name else f"tests/**/{name}")), name


def test_faults_are_numbered_without_gaps():
    numbers = {int(number) for number in re.findall(r"^- \*\*F(\d+)\b", PAGE, re.MULTILINE)}
    assert numbers == set(range(1, max(numbers) + 1))
