"""Build what a release consists of, into dist/VERSION: the sources, wheels, a tarball that needs no Python, Debian
packages and an image of the same, and the documentation as a site.

It is built from the files of one commit: the given one (a tag such as v1.0.0), or HEAD. The same commit gives the same
bytes on machines with the same compiler and Pythons, and SHA256SUMS has their sums.

- A wheel in pure Python, and a compiled one for each CPython 3.11 to 3.14 that is found: in RELEASE_PYTHONS (a list
  with colons), in build/pythons, on PATH, or installed by pyenv. auditwheel tags it with the oldest glibc that it runs
  with. `scripts/interpreter 3.14 build/pythons/3.14` builds a missing one from Debian's sources.
- The tarball contains a Python: /usr/bin/python3 or RELEASE_PYTHON. Its glibc decides on how old a system the tarball
  runs: scripts/interpreter builds one for Debian 11. Like Debian's, it has profile-guided optimization.
- The image contains the tarball, and Debian's glibc and busybox as they are installed.

Use `make release`, which prepares the environment. `make release-check` builds everything twice, compares, and tries
each artefact; it needs root, debootstrap and lintian. RELEASE_ROOTS keeps the systems that it makes, so that a second
run is faster. `python -m scripts.release --check` does what CI has time for.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.release.checks import (
    SUITES,
    check_image,
    check_lintian,
    check_packages,
    check_same,
    check_tarball,
    check_wheel,
    digests,
    suites_of,
)
from scripts.release.debian import build_packages
from scripts.release.image import build_image
from scripts.release.source import ROOT, Source, build_site, build_sources, run, say, uncommitted
from scripts.release.tarball import build_tarball
from scripts.release.wheels import build_compiled_wheel, build_pure_wheel, pythons


def build(revision: str, output: Path, *, everything: bool) -> Path:
    """Build into a folder below `output` that is named after the version, and write the sums."""
    with tempfile.TemporaryDirectory(prefix="release-") as work:
        source = Source.of(revision, Path(work))
        source.check()
        folder = output / source.version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        say(f"sources and pure wheel of {source.version}")
        build_sources(source, folder)
        build_pure_wheel(source, folder)
        say("site of the documentation")
        build_site(source, folder)
        if everything:
            for version, python in pythons().items():
                say(f"wheel for Python {version}: {python}")
                build_compiled_wheel(source, version, python, folder)
            say("tarball")
            build_tarball(source, folder, folder)
            say("Debian packages")
            [tarball] = folder.glob("*.linux-*.tar.gz")
            build_packages(tarball, source.tree, folder, source.version, source.time)
            say("image")
            build_image(tarball, folder, revision)
        sums = "".join(f"{digest}  {name}\n" for name, digest in digests(folder).items())
        (folder / "SHA256SUMS").write_text(sums)
        print(sums, end="")
    return folder


def check_all(revision: str, work: Path) -> None:
    """Build twice, compare, and try each artefact."""
    folder, again = (build(revision, work / name, everything=True) for name in ("first", "again"))
    check_same(folder, again)
    for wheel in sorted(folder.glob("*.whl")):
        [version] = re.findall(r"-cp3(\d+)-", wheel.name) or [str(sys.version_info[1])]
        check_wheel(wheel, pythons()[f"3.{version}"], work)
    roots = Path(os.environ.get("RELEASE_ROOTS", work / "roots"))
    [tarball] = folder.glob("*.linux-*.tar.gz")
    for suite in suites_of(tarball):
        check_tarball(tarball, suite, roots)
    check_lintian(folder)
    for suite in SUITES:
        check_packages(folder, suite, roots)
    check_image(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m scripts.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--check", action="store_true", help="check what CI has time for; writes nothing to dist")
    parser.add_argument("--check-all", action="store_true", help="check everything, as `make release-check` does")
    options = parser.parse_args()
    os.umask(0o022)
    if options.check_all and "RELEASE_MOUNTS" not in os.environ:
        os.environ["RELEASE_MOUNTS"] = "yes"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "scripts.release", *sys.argv[1:]])
    revision = run("git", "rev-parse", "--verify", f"{options.revision}^{{commit}}", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory() as work:
        if options.check_all:
            check_all(revision, Path(work))
        elif options.check:
            revision = uncommitted(ROOT) or revision
            check_same(*(build(revision, Path(work) / name, everything=False) for name in ("first", "again")))
        else:
            build(revision, ROOT / "dist", everything=True)


if __name__ == "__main__":
    main()
