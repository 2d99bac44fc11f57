"""Four pages agree with the code. docs/architecture.md: its hot list is up to date, and the files and names it names
exist. docs/guarantees.md: it names all fault tests, and only existing ones. docs/http-api.md: it has every route.
docs/security.md: it has the permission of every route and command.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.protocol.commands import COMMANDS
from nsq_compat.protocol.lookup_commands import COMMANDS as LOOKUP_COMMANDS
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqd_api import NsqdApi
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi
from tests.docs.sandbox import ROOT
from tests.web.admin.conftest import Service as AdminService
from tests.web.conftest import Daemon as NsqdService

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


# --- docs/http-api.md -------------------------------------------------------------------------------------------------


def test_the_page_of_the_http_api_has_every_route():
    nsqd = NsqdApi(NsqdService())
    nsqlookupd = NsqlookupdApi(RegistrationDb(300.0, 45.0), Metrics("nsqlookupd"), RegistrationPolicy())
    nsqadmin = create_app(AdminService(Cluster(HttpClient(request_timeout=20)))).url_map.iter_rules()
    page = (ROOT / "docs" / "http-api.md").read_text("utf-8")
    _, *parts = re.split(r"^## nsq.*\n", page, flags=re.MULTILINE)
    for part, paths in zip(
        parts,
        (
            [*nsqd._paths, *nsqd._families],
            [path for path in nsqlookupd._paths if not path.startswith("/debug/pprof/")],
            [
                re.sub("<(.*?)>", r":\1", each.rule)
                for each in nsqadmin
                if each.endpoint.startswith(("api", "operations"))
            ],
        ),
        strict=True,
    ):
        assert len(paths) > 12
        assert [path for path in paths if path.replace("/config/:name", "/config/:option") not in part] == []


# --- docs/security.md -------------------------------------------------------------------------------------------------


def _documented(title: str) -> dict[str, set[str]]:
    """The rows of a table in docs/security.md: permission, and what needs it."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    part = page.partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", part, re.MULTILINE)
    return {permission: set(re.findall("`([^`]+)`", what)) for permission, what in rows if permission != "Permission"}


def test_the_page_on_security_has_the_permission_of_every_route():
    for title, api in (
        ("nsqd over HTTP", NsqdApi(NsqdService())),
        (
            "nsqlookupd over HTTP",
            NsqlookupdApi(RegistrationDb(300.0, 45.0), Metrics("nsqlookupd"), RegistrationPolicy()),
        ),
    ):
        found: dict[str, set[str]] = {}
        for path, methods in api.routes.items():
            if not re.match("/debug/pprof/.", path):
                for method, route in methods.items():
                    found.setdefault(route.permission or "none", set()).add(f"{method} {path}")
        assert _documented(title) == found


def test_the_page_on_security_has_every_command():
    for title, commands in (("nsqd over TCP", COMMANDS), ("nsqlookupd over TCP", LOOKUP_COMMANDS)):
        rows = _documented(title)
        assert set.union(*rows.values()) == {name.decode() for name in commands}
        assert sum(map(len, rows.values())) == len(commands)
