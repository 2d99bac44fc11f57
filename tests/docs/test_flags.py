"""Every flag that a page mentions in its text exists. Flags in code blocks are tested by running the blocks."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.sandbox import ROOT
from tests.packaging.release import console_scripts

FOREIGN_FLAGS = {
    "README.md": {"without-privileges"},  # of scripts/test
    "docs/differences.md": {"queue-scan"},  # the beginning of two flags
    "docs/flags.md": {"name"},  # any flag
    "docs/guarantees.md": {"seed", "other-nsqd"},  # pytest's, in tests/faults and conformance
    "docs/http-api.md": {"data-binary"},  # curl's
    "docs/operations.md": {"reuid", "regid", "init-groups"},  # of setpriv
    "docs/runbook.md": {"target"},  # of findmnt
    "docs/spark.md": {"archives", "py-files"},  # spark-submit's
    "docs/upgrading.md": {"allow-downgrades", "configure"},  # of apt and dpkg
    "docs/utilities.md": {"max"},  # simplequeue's
}
_FLAG = re.compile(r"(?<![\w-])--?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
_CODE = re.compile(r"`([^`]+)`")


def output_of(command: tuple[str, ...]) -> str:
    program, *words = command
    result = subprocess.run(
        [Path(sys.executable).with_name(program), *words], capture_output=True, text=True, timeout=50, cwd=ROOT
    )
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every flag of every program, from its ``--help``."""
    asked: list[tuple[str, ...]] = [(script, "--help") for script in console_scripts()]
    asked += [("nsq_data", subcommand, "--help") for subcommand in ("check", "export", "salvage")]
    asked += [("nsq_access", subcommand, "--help") for subcommand in ("new", "list", "revoke")]
    asked += [("python", "-m", "nsq_conformance.demo", "--help")]  # scripts/run
    asked += [("python", "-m", "pyspark_nsq.spool_tool", subcommand, "--help") for subcommand in ("requeue", "purge")]
    jobs = [path.name for path in (ROOT / "spark" / "jobs").glob("*.py") if "__main__" in path.read_text()]
    assert "windowed_counts.py" in jobs
    asked += [("python", f"spark/jobs/{job}", "--help") for job in jobs]
    with ThreadPoolExecutor(4) as threads:
        return {flag for text in threads.map(output_of, asked) for flag in _FLAG.findall(text)}


def test_every_flag_a_page_mentions_exists(known):
    assert {"data-path", "lookupd-http-address", "into"} <= known
    wrong = set()
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        page = str(path.relative_to(ROOT))
        sentences = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        flags = [flag for code in _CODE.findall(sentences) for flag in _FLAG.finditer(code)]
        named = {flag[1] for flag in flags if flag[0].startswith("--")}
        wrong |= {(page, flag) for flag in named - known - FOREIGN_FLAGS.get(page, set())}
    assert wrong == set()
