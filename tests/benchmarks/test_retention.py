"""The benchmark of retention runs, with few messages: nsqd reads the log that it has written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_all_figures_of_retention_are_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.retention", "--messages=20000", "--seconds=0.2", "--rounds=1"]
    run = subprocess.run([*command, f"--out={page}"], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    rates = [float(rate) for rate in re.findall(r"([0-9.]+) GB per CPU second", page.read_text())]
    assert len(rates) == 6
    assert min(rates) > 0
