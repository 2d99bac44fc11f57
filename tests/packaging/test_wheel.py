"""The release: built, installed in an empty environment, and used there."""

import re
import sys
import tarfile
import zipfile

import pytest

from tests.packaging.release import ROOT, run

PAGES = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "templates").rglob("*.html")}
ASSETS = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "static").iterdir()}
MODULES = {str(path.relative_to(ROOT)) for path in (ROOT / "nsq_compat").rglob("*.py")}
SPARK = {f"pyspark_nsq/{path.name}" for path in (ROOT / "spark" / "pyspark_nsq").glob("*.py")}
KIT = {f"nsq_conformance/{path.relative_to(ROOT / 'conformance')}" for path in (ROOT / "conformance").rglob("*.*")}
KIT = {name for name in KIT if "node_modules" not in name and "__pycache__" not in name}
MARKERS = {"nsq_compat/py.typed", "pyspark_nsq/py.typed"}
ALONGSIDE = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.cfg", ".ci/constraints.txt"}
DOCS = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
CONTRIB = {str(path.relative_to(ROOT)) for path in (ROOT / "contrib").rglob("*") if path.is_file()}

# Builds and installations run other programs, and download once.
pytestmark = pytest.mark.timeout(300)


def test_archive_and_wheel_have_all_modules_pages_and_assets_and_no_tests_of_their_own(release):
    with tarfile.open(release.archive) as sources:
        in_archive = {name.partition("/")[2] for name in sources.getnames()}
    with zipfile.ZipFile(release.wheel) as content:
        in_wheel = set(content.namelist())
    for names in (in_archive, in_wheel):
        assert names >= MODULES | SPARK | KIT | PAGES | ASSETS | MARKERS
    assert in_archive >= ALONGSIDE | DOCS | CONTRIB
    folders = {name.partition("/")[0] for name in in_wheel}
    assert {name for name in folders if not name.endswith(".dist-info")} == {
        "nsq_compat",
        "nsq_conformance",
        "pyspark_nsq",
    }
    left_out = {"tests", "conformance", "benchmarks", "static", "templates", "build", "dist"}
    assert not left_out & {name.partition("/")[0] for name in in_archive}


def test_the_conformance_kit_checks_an_nsqd_from_where_it_is_installed(release, tmp_path):
    kit = release.installed("conformance") / "nsq-conformance"
    checks = ("behaviours/test_http.py::test_ping_says_ok_as_plain_text", "behaviours/test_publish.py")
    table = run(kit, "--processes=2", *checks, cwd=tmp_path)
    assert re.search(r"\nours: \d\d behaviours, \d\d passes\n", table)


def test_a_type_checker_uses_the_types_of_the_installed_package(release, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from nsq_compat.client import Producer\n\nProducer(4150).publish(b'orders', 'one')\n")
    python = release.installed() / "python"
    mypy = ("--python-executable", python, "--cache-dir", tmp_path / "cache", program)
    with pytest.raises(AssertionError, match='incompatible type "int"'):
        run(sys.executable, "-m", "mypy", *mypy, cwd=tmp_path)
