"""Checks of what was built: each artefact is installed or unpacked where nothing else is, and tested there."""

import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from scripts.release.source import BIN, ROOT, install, run, say
from scripts.release.tarball import OLDEST_GLIBC

SHORT_FORM: Final = (
    "behaviours/test_http.py",
    "behaviours/test_publish.py",
    "test_pynsq.py",
    "test_go_nsq.py",
    "test_nsqlookupd.py",
)
"""Tests of the conformance kit that every artefact must pass."""
SUITES: Final = ("bookworm", "trixie")
"""Debian's, in which the tarball must run."""

# In the tarball's Python: all modules can be imported, so none needs a part of Python's library that was left out.
IMPORT_ALL: Final = """\
import importlib, pkgutil, sys, zoneinfo
sys.path.insert(0, sys.argv[1])
import gevent.monkey
gevent.monkey.patch_all()
import nsq_compat
for module in pkgutil.walk_packages(nsq_compat.__path__, "nsq_compat."):
    if module.name != "nsq_compat.client.tracing":  # its extra is not in [all]
        importlib.import_module(module.name)
"""


def check_wheel(wheel: Path, python: str, work: Path) -> None:
    """Install it into a bare environment, and run the short form of the conformance tests, and upgrades to it."""
    environment = work / f"bare-{wheel.name}"
    run(python, "-m", "venv", environment)
    install(environment / "bin/python", f"{wheel}[all]")
    programs = environment / "bin"
    compiled = "no" if wheel.name.endswith("-none-any.whl") else "yes"
    if f"compiled: {compiled}" not in (said := run(programs / "nsqd", "--version")):
        sys.exit(f"{wheel.name}: nsqd --version prints {said!r}, not `compiled: {compiled}`.")
    check_behaviours(wheel.name, f"{programs}/nsqd", f"{programs}/nsqlookupd", f"{programs}/nsqadmin")
    upgrades = (BIN / "pytest", "-q", "-n", "2", "tests/packaging/test_upgrade.py")
    print(f"{wheel.name}: {run(*upgrades, cwd=ROOT, env={'UPGRADE_TO': f'{programs}/nsqd'}).splitlines()[-1]}")


def suites_of(tarball: Path) -> tuple[str, ...]:
    """Those in which it must run: also Debian 11, if its Python was built there."""
    with tarfile.open(tarball) as archive:
        [python] = (member for member in archive if member.name.endswith("/lib/python3"))
        content = archive.extractfile(python)
        assert content is not None
        glibc = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content.read()))
    return ("bullseye", *SUITES) if glibc <= OLDEST_GLIBC else SUITES


def check_tarball(tarball: Path, suite: str, roots: Path) -> None:
    """Unpack it in a bare Debian, and run the short form of the conformance tests with its programs."""
    root = roots / suite
    if not (root / "etc/debian_version").exists():
        say(f"making a bare {suite}")
        run("debootstrap", "--variant=minbase", suite, root)
    if (root / "usr/bin/python3").exists():
        sys.exit(f"{root} is to be a system without Python, and has one.")
    shutil.rmtree(root / "opt/nsq_compat", ignore_errors=True)
    (root / "opt/nsq_compat").mkdir()
    run("tar", "-xf", tarball, "-C", root / "opt/nsq_compat", "--strip-components=1")
    # The mounts are in a namespace of this script's own, and end with it.
    run("mount", "-t", "proc", "proc", root / "proc")
    run("mount", "--rbind", "/dev", root / "dev")
    run("mount", "--bind", tempfile.gettempdir(), root / "tmp")
    programs = [f"chroot {root} /opt/nsq_compat/bin/{name}" for name in ("nsqd", "nsqlookupd", "nsqadmin")]
    python = ("chroot", root, "/opt/nsq_compat/lib/python3", "-I", "-S", "-c")
    run(*python, IMPORT_ALL, "/opt/nsq_compat/lib/packages")
    check_behaviours(f"{tarball.name} on {suite}", *programs)
    for name in ("tmp", "dev", "proc"):
        run("umount", "--recursive", root / name)


def check_lintian(folder: Path) -> None:
    """Debian's own check of packages, for all that contrib/debian does not give reasons for."""
    run("lintian", "--allow-root", "--fail-on=error,warning", *folder.glob("*.deb"))


def check_packages(folder: Path, suite: str, roots: Path) -> None:
    """Install, upgrade and remove them in a copy of a bare Debian that has no network, with the tests of packages."""
    say(f"Debian packages on {suite}")
    variables = {"RELEASE_FOLDER": str(folder), "RELEASE_ROOT": str(roots / suite)}
    run(BIN / "pytest", "-q", "tests/packaging/test_debian.py", cwd=ROOT, env=variables)


def check_image(folder: Path) -> None:
    """Run the tests of the image with that of the release, in containers without anything else."""
    say("image")
    run(BIN / "pytest", "-q", "tests/packaging/test_image.py", cwd=ROOT, env={"RELEASE_FOLDER": str(folder)})


def check_behaviours(name: str, nsqd: str, nsqlookupd: str, nsqadmin: str) -> None:
    daemons = (f"--nsqd={nsqd}", f"--nsqlookupd={nsqlookupd}", f"--nsqadmin={nsqadmin}", "--processes=2")
    table = run(BIN / "python", "-m", "nsq_conformance", *daemons, *SHORT_FORM, cwd=ROOT)
    print(f"{name}: {table.strip().splitlines()[-1]}", flush=True)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_same(folder: Path, again: Path) -> None:
    first, second = digests(folder), digests(again)
    if different := sorted(name for name in first | second if first.get(name) != second.get(name)):
        sys.exit(f"Two builds of the same commit differ: {', '.join(different)}.")
    say("two builds are the same")
