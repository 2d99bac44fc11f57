"""Earlier versions of nsq_compat, and the present one, as wheels that run with the dependencies of this environment.

A wheel of an earlier version is built from the history of the checkout. A shallow clone fetches the commit from where
it was cloned.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from nsq_conformance.nsqd_process import installed_nsqd
from tests.packaging.release import ROOT, Release, run

BEFORE = {
    # Until there is a tag: the first commit that writes the present data path.
    "the same data path": "e448945b28050a957fc564c544c770eecad18588",
    # Segments of version 2.
    "another data path": "330c6d1fac19efbbe15b58f30eba1296a0c396a3",
}
"""Versions before this one, as tags or commits: the last one, and the last one with another data path."""


def command(release: Release, version: str) -> str:
    """The command line of a version's nsqd: of one in BEFORE, or of this one if `version` is empty.

    UPGRADE_TO replaces this one by another artefact of it.
    """
    if not version and "UPGRADE_TO" in os.environ:
        return os.environ["UPGRADE_TO"]
    folder = release.made(f"nsqd-{version or 'now'}", lambda folder: _unpack(release, version, folder))
    return f"env PYTHONPATH={shlex.quote(str(folder))} {installed_nsqd()}"


def _unpack(release: Release, version: str, folder: Path) -> None:
    wheel = _wheel_of(BEFORE[version], folder.with_name(f"{folder.name}-tree")) if version else release.wheel
    run(sys.executable, "-m", "zipfile", "-e", wheel, folder, cwd=folder.parent)


def _wheel_of(commit: str, tree: Path) -> Path:
    """Build the wheel in pure Python of a commit."""
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        run("git", "fetch", "--quiet", "--depth=1", "origin", commit, cwd=ROOT)
    tree.mkdir()
    run("git", "archive", "--format=tar", f"--output={tree}.tar", commit, cwd=ROOT)
    run("tar", "-xf", f"{tree}.tar", "-C", tree, cwd=tree)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    run(*build, cwd=tree, NSQ_COMPAT_COMPILED="0")
    [wheel] = (tree / "dist").glob("*.whl")
    return wheel
