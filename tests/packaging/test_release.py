"""The release: built, installed in empty environments, and used there. Without extras, programs run without the missing
features and report them.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from scripts.release.source import contradiction, pack, uncommitted
from scripts.release.tarball import PURPOSES, manual_page
from tests.packaging.release import ROOT, console_scripts, run, settings, words

# Builds and installations run other programs, and download once.
pytestmark = pytest.mark.timeout(900)

EXTRAS = ("admin", "metrics", "oidc", "pyopenssl", "snappy")
SNAPPY = "python-snappy is not installed: pip install 'nsq_compat[snappy]'"
NEGOTIATION = """
from nsq_compat.client import Producer
with Producer({address!r}, {options}) as producer:
    print(producer.publish("orders", b"one").nodes)
"""

PAGES = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "templates").rglob("*.html")}
ASSETS = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "static").iterdir()}
DOCUMENTS = {f"nsq_compat/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
MODULES = {str(path.relative_to(ROOT)) for path in (ROOT / "nsq_compat").rglob("*.py")}
SPARK = {f"pyspark_nsq/{path.name}" for path in (ROOT / "spark" / "pyspark_nsq").glob("*.py")}
KIT = {f"nsq_conformance/{path.relative_to(ROOT / 'conformance')}" for path in (ROOT / "conformance").rglob("*.*")}
KIT = {name for name in KIT if "node_modules" not in name and "__pycache__" not in name}
MARKERS = {"nsq_compat/py.typed", "pyspark_nsq/py.typed"}
ALONGSIDE = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.cfg", ".ci/constraints.txt"}
DOCS = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
CONTRIB = {str(path.relative_to(ROOT)) for path in (ROOT / "contrib").rglob("*") if path.is_file()}


def test_a_file_that_only_has_another_time_is_not_a_change(tmp_path):
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    file = tmp_path / "file"
    file.write_text("x")
    git("init")
    git("add", "file")
    git("commit", "--message=x")
    os.utime(file, (0, 0))
    assert uncommitted(tmp_path) == ""
    file.write_text("y")
    assert re.fullmatch("[0-9a-f]{40}", uncommitted(tmp_path))


def test_archive_and_wheel_have_all_modules_pages_and_assets_and_no_tests_of_their_own(release):
    with tarfile.open(release.archive) as sources:
        in_archive = {name.partition("/")[2] for name in sources.getnames()}
    with zipfile.ZipFile(release.wheel) as content:
        in_wheel = set(content.namelist())
    for names in (in_archive, in_wheel):
        assert names >= MODULES | SPARK | KIT | PAGES | ASSETS | DOCUMENTS | MARKERS
    assert in_archive >= ALONGSIDE | DOCS | CONTRIB
    folders = {name.partition("/")[0] for name in in_wheel}
    assert {name for name in folders if not name.endswith(".dist-info")} == {
        "nsq_compat",
        "nsq_conformance",
        "pyspark_nsq",
    }
    left_out = {"tests", "conformance", "benchmarks", "static", "templates", "build", "dist"}
    assert not left_out & {name.partition("/")[0] for name in in_archive}


def test_the_conformance_kit_reads_the_list_of_differences_in_the_documentation(release):
    assert (ROOT / "conformance" / "differences.md").samefile(ROOT / "docs" / "differences.md")
    with zipfile.ZipFile(release.wheel) as content:
        pages = [content.read(f"{folder}/differences.md") for folder in ("nsq_compat/docs", "nsq_conformance")]
    assert pages == 2 * [(ROOT / "docs" / "differences.md").read_bytes()]


def test_the_conformance_kit_checks_an_nsqd_from_where_it_is_installed(release, tmp_path):
    kit = release.installed("conformance") / "nsq-conformance"
    checks = ("behaviours/test_http.py::test_ping_says_ok_as_plain_text", "behaviours/test_publish.py")
    table = run(kit, "--processes=2", *checks, cwd=tmp_path)
    assert re.search(r"\nours: \d\d behaviours, \d\d passes\n", table)


def test_the_conformance_kit_without_its_extra_names_the_command_that_installs_it(release, tmp_path):
    programs = release.installed()
    assert "usage: nsq-conformance" in run(programs / "nsq-conformance", "--help", cwd=tmp_path)
    ended = subprocess.run([programs / "nsq-conformance", "publish"], capture_output=True, text=True)
    sentence, _, command = ended.stderr.strip().partition("  ")
    assert (ended.returncode, sentence) == (2, "nsq-conformance: Packages are missing. Install them with:")
    python, *install = shlex.split(command)
    assert (Path(python), install[:3]) == (programs / "python", ["-m", "pip", "install"])
    assert {"pytest", "pynsq", "trustme"} <= {each.partition("==")[0] for each in install[3:]}


def test_a_type_checker_uses_the_types_of_the_installed_package(release, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from nsq_compat.client import Producer\n\nProducer(4150).publish(b'orders', 'one')\n")
    python = release.installed() / "python"
    mypy = ("--python-executable", python, "--cache-dir", tmp_path / "cache", program)
    with pytest.raises(AssertionError, match='incompatible type "int"'):
        run(sys.executable, "-m", "mypy", *mypy, cwd=tmp_path)


RELEASED = "## [Unreleased]\n\n## [1.0.0] - 2027-01-31\n"


@pytest.mark.parametrize(
    ("version", "changelog", "tags", "wanted"),
    [
        ("1.0.0", RELEASED, ["v1.0.0"], ""),
        ("1.0.0", RELEASED, [], ""),
        ("1.0.0", "## [1.0.0] - 2027-01-31\n", [], "the first section is not [Unreleased]"),
        ("1.0.0", "## [Unreleased]\n\n## [1.0.0]\n", [], "is not a version and its date"),
        ("1.1.0", RELEASED, ["v1.0.0"], "The tag of this commit is v1.0.0, and __version__"),
        ("1.1.0", RELEASED, ["v1.1.0"], "the newest version is not 1.1.0"),
    ],
)
def test_version_tag_and_changelog_of_a_release_fit_together(
    version: str, changelog: str, tags: list[str], wanted: str
):
    found = contradiction(version, changelog, tags)
    assert bool(found) == bool(wanted)
    assert wanted in found


def test_an_archive_depends_on_contents_only(tmp_path: Path):
    for name, order in (("one", "ab"), ("two", "ba")):
        folder = tmp_path / name / "release"
        folder.mkdir(parents=True)
        for file in order:
            (folder / file).write_text(file)
        (folder / "a").chmod(0o700 if name == "one" else 0o755)
        os.utime(folder / "b", (0, len(name) + ord(order[0])))
        pack(folder, tmp_path / f"{name}.tar.gz", "1800000000")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


def test_a_manual_page_has_every_flag_and_what_it_means():
    usage = "Usage of to_nsq:\n  -rate int\n    \tmost messages a second (default 1)\n  -version\n    \t.ends \\ here\n"
    flags = manual_page("to_nsq", "publish lines", usage, "1.0.0", "1800000000").partition("two.\n")
    assert flags[0].splitlines()[:3] == [
        '.TH TO_NSQ 1 2027-01-15 "nsq_compat 1.0.0"',
        ".SH NAME",
        r"to_nsq \- publish lines",
    ]
    assert flags[2].splitlines()[:6] == [
        ".TP",
        r"\fB\-rate\fR \fIint\fR",
        r"\&most messages a second (default 1)",
        ".TP",
        r"\fB\-version\fR \fI\fR",
        r"\&.ends \e here",
    ]


def test_a_manual_page_of_a_program_with_subcommands_shows_its_help_as_it_is():
    shown = manual_page(
        "nsq_data", "check", "``nsq_data``: check.\n\n    nsq_data check --json\n", "1.0.0", "1800000000"
    )
    assert shown.endswith(".nf\n\\&nsq_data: check.\n\\&\n\\&    nsq_data check \\-\\-json\n.fi\n")


def test_every_program_has_a_purpose_for_its_manual_page():
    assert list(PURPOSES) == console_scripts()


# --- Without extras ---------------------------------------------------------------------------------------------------


def packages_of(programs: Path) -> set[str]:
    names = "import importlib.metadata as found; print(*(each.name for each in found.distributions()))"
    found = run(programs / "python", "-c", names, cwd=programs)
    return {re.sub("[-_.]+", "-", name).lower() for name in found.split()}


def named(requirement: str) -> str:
    return re.sub("[-_.]+", "-", requirement.partition("==")[0]).lower()


def test_only_requested_extras_are_installed(release):
    extras = settings()["options.extras_require"]
    optional = {named(line) for extra in EXTRAS for line in words(extras[extra])}
    oidc = {"authlib", "joserfc"}
    assert optional == oidc | {"flask", "jinja2", "mistune", "python-snappy", "prometheus-client", "pyopenssl"}
    assert packages_of(release.installed()) & optional == set()
    assert packages_of(release.installed("all")) >= optional


def test_every_program_prints_its_version(release):
    for script in console_scripts():
        said = run(release.installed() / script, "--version", cwd=release.folder)
        assert said.startswith(f"{script} v1.3.0"), script


def test_nsqd_serves_without_metrics_and_snappy_and_reports_it(release, tmp_path):
    data_path = tmp_path / "data"
    data_path.mkdir()
    with NsqdProcess(str(release.installed() / "nsqd"), data_path) as nsqd:
        assert nsqd.logs(f"snappy is not offered to clients: {SNAPPY}")
        answer = nsqd.asks("GET", "/metrics")
        assert (answer.status, answer.body.decode()) == (
            501,
            "prometheus_client is not installed: pip install 'nsq_compat[metrics]'",
        )
        for path in ("/ping", "/livez", "/readyz"):
            assert (nsqd.asks("GET", path).status, nsqd.asks("GET", path).body) == (200, b"OK")
        # A client requests snappy, learns that it is not available, and continues without it.
        asks = NEGOTIATION.format(address=nsqd.tcp_address, options="snappy=True")
        assert nsqd.tcp_address.rpartition(":")[2] in run(sys.executable, "-c", asks, cwd=tmp_path)
        assert (nsqd.topic_stats("orders") or {}).get("message_count") == 1


def test_nsqd_refuses_the_client_policy_that_needs_pyopenssl(release, tmp_path):
    files = Certificates(tmp_path)
    checks = [release.installed() / "nsqd", "--check-config", f"--data-path={tmp_path}", *files.options]
    refused = subprocess.run([*checks, "--tls-client-auth-policy=require"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "pip install 'nsq_compat[pyopenssl]'" in refused.stderr
    run(*checks, "--tls-client-auth-policy=require-verify", cwd=tmp_path)
    run(release.installed("all") / "nsqd", *checks[1:], "--tls-client-auth-policy=require", cwd=tmp_path)


def test_nsqlookupd_serves_without_metrics(release):
    with NsqlookupdProcess(str(release.installed() / "nsqlookupd")) as nsqlookupd:
        assert nsqlookupd.asks("GET", "/metrics").status == 501
        assert nsqlookupd.asks("GET", "/topics").json() == {"topics": []}


def test_a_client_that_requests_snappy_learns_what_is_missing(release, tmp_path):
    asks = NEGOTIATION.format(address="127.0.0.1:4150", options="snappy=True")
    with pytest.raises(AssertionError, match=re.escape(f"ValueError: {SNAPPY}")):
        run(release.installed() / "python", "-c", asks, cwd=tmp_path)


def test_a_client_that_asks_for_tracing_learns_what_is_missing(release, tmp_path):
    asks = NEGOTIATION.format(address="127.0.0.1:4150", options="tracing=True")
    with pytest.raises(AssertionError, match=re.escape("pip install 'nsq_compat[tracing]'")):
        run(release.installed() / "python", "-c", asks, cwd=tmp_path)


def test_nsqadmin_reports_its_missing_extra(release, tmp_path):
    command = [release.installed() / "nsqadmin", "--http-address=127.0.0.1:0", "--nsqd-http-address=127.0.0.1:4151"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    reason = "flask is not installed: pip install 'nsq_compat[admin]'"
    assert ended.stderr.endswith(f"FATAL: failed to instantiate nsqadmin - {reason}\n")


def test_nsqadmin_needs_only_its_own_extra(release):
    shows = ["--nsqd-http-address=127.0.0.1:1"]
    with NsqadminProcess(str(release.installed("admin") / "nsqadmin"), options=shows) as nsqadmin:
        assert nsqadmin.asks("GET", "/metrics").status == 501
        assert "nsqadmin" in nsqadmin.get("/")
