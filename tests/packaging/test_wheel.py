"""What is given to others: built as a release is, installed where nothing else is, and started there."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path
from urllib.request import urlopen

import pytest

from conformance.nsqadmin_process import NsqadminProcess
from conformance.nsqd_process import NsqdProcess

ROOT = Path(__file__).parents[2]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "nsq_compat", "static", "templates")
PAGES = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "templates").rglob("*.html")}
ASSETS = {f"nsq_compat/{path.relative_to(ROOT)}" for path in (ROOT / "static").iterdir()}
MODULES = {str(path.relative_to(ROOT)) for path in (ROOT / "nsq_compat").rglob("*.py")}

# Building and installing wait for other programs and perhaps for a package index.
pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=250, cwd=cwd)
    assert result.returncode == 0, f"{command}:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The archive of sources, and the wheel made from it."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=left_out)
        else:
            shutil.copy(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", cwd=tree)
    [archive], [wheel] = (tree / "dist").glob("*.tar.gz"), (tree / "dist").glob("*.whl")
    return archive, wheel


def test_archive_and_wheel_have_all_modules_pages_and_assets_and_no_tests(built):
    archive, wheel = built
    with tarfile.open(archive) as sources:
        in_archive = {name.partition("/")[2] for name in sources.getnames()}
    with zipfile.ZipFile(wheel) as content:
        in_wheel = set(content.namelist())
    for names in (in_archive, in_wheel):
        assert names >= MODULES | PAGES | ASSETS
    folders = {name.partition("/")[0] for name in in_wheel}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"nsq_compat"}


def test_installed_alone_every_program_says_its_version_and_daemons_serve(built, tmp_path):
    _, wheel = built
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", home, cwd=tmp_path)
    pip = (home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / ".ci" / "constraints.txt", wheel, cwd=tmp_path)
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    scripts = [line.partition(" ")[0] for line in setup["options.entry_points"]["console_scripts"].split("\n") if line]
    assert {"nsqd", "nsqlookupd", "nsqadmin"} < set(scripts)
    for script in scripts:
        assert run(home / "bin" / script, "--version", cwd=tmp_path).startswith(f"{script} v1.3.0")
    (tmp_path / "data").mkdir()
    with NsqdProcess(str(home / "bin" / "nsqd"), tmp_path / "data") as nsqd:
        urlopen(f"http://{nsqd.http_address}/pub?topic=orders", b"one", timeout=20).close()
        shows = [f"--nsqd-http-address={nsqd.http_address}"]
        with NsqadminProcess(str(home / "bin" / "nsqadmin"), options=shows) as nsqadmin:
            assert "orders" in nsqadmin.get("/")
            assert "{" in nsqadmin.get("/static/nsqadmin.css")
