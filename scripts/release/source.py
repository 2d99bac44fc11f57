"""The commit that a release is built from, and what all builds need: commands, settings, reproducible archives."""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = ROOT / ".venv/bin"
CONSTRAINTS: Final = ROOT / ".ci/constraints.txt"


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command with additional variables and return its output; ends the script if it fails."""
    words, variables = [*map(str, command)], {**os.environ, **(env or {})}
    done = subprocess.run(words, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\n{shlex.join(words)}: exit status {done.returncode}")
    return done.stdout


def uncommitted(folder: Path) -> str:
    """A commit with what is not committed yet; empty if everything is."""
    # Otherwise files that only have another time or owner count as changed, and there is nothing to stash.
    subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=folder, stdin=subprocess.DEVNULL, check=False)
    return run("git", "stash", "create", cwd=folder).strip()


def lines(section: str, key: str) -> list[str]:
    """A list in setup.cfg."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return [line for line in parser[section][key].split("\n") if line and not line.startswith("#")]


def install(python: Path, *wanted: str | Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, *wanted)


@dataclass(frozen=True)
class Source:
    """The files of one commit."""

    revision: str
    tree: Path
    """A clean copy of them."""
    time: str
    """Of the commit, in seconds; all files of a release have it."""

    @classmethod
    def of(cls, revision: str, work: Path) -> "Source":
        tree = work / "tree"
        tree.mkdir()
        archive = work / "tree.tar"
        run("git", "archive", "--format=tar", f"--output={archive}", revision, cwd=ROOT)
        run("tar", "-xf", archive, "-C", tree)
        return cls(revision, tree, run("git", "log", "-1", "--format=%ct", revision, cwd=ROOT).strip())

    @property
    def version(self) -> str:
        text = (self.tree / "nsq_compat/__init__.py").read_text()
        return str(re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)[0])

    @property
    def environment(self) -> dict[str, str]:
        """For builds: nothing in the output depends on the time, the order of a hash, or the user's settings."""
        return {
            "SOURCE_DATE_EPOCH": self.time,
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "NSQ_COMPAT_COMPILED": "0",
        }

    def copy(self, name: str) -> Path:
        """Another copy, since a build leaves files in its folder."""
        return Path(shutil.copytree(self.tree, self.tree.parent / name, symlinks=True))

    def check(self) -> None:
        """Ends the script if version, changelog and tag do not fit together."""
        tags = run("git", "tag", "--points-at", self.revision, cwd=ROOT).split()
        if wrong := contradiction(self.version, (self.tree / "CHANGELOG.md").read_text(), tags):
            sys.exit(wrong)


def contradiction(version: str, changelog: str, tags: Sequence[str]) -> str:
    """What does not fit together in a commit with these tags; empty if all does."""
    sections = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    if sections[:1] != ["[Unreleased]"]:
        return "CHANGELOG.md: the first section is not [Unreleased]."
    for section in sections[1:]:
        if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", section):
            return f"CHANGELOG.md: {section!r} is not a version and its date, such as `[1.0.0] - 2027-01-31`."
    if tags and tags != [f"v{version}"]:
        return (
            f"The tag of this commit is {' and '.join(tags)}, and __version__ in nsq_compat/__init__.py is {version}."
        )
    if tags and not "".join(sections[1:2]).startswith(f"[{version}] "):
        return f"CHANGELOG.md: the newest version is not {version}, which is tagged."
    return ""


def pack(folder: Path, archive: Path, time: str) -> None:
    """Write a .tar.gz of a folder: sorted, with one time, and without users."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = int(time)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    paths = sorted(path for path in [folder, *folder.rglob("*")])
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=int(time)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as file,
    ):
        for path in paths:
            file.add(path, str(path.relative_to(folder.parent)), recursive=False, filter=plain)


def build_sources(source: Source, output: Path) -> None:
    """The archive of sources. setuptools writes the time into it, so it is packed again."""
    tree = source.copy("sources")
    build = (BIN / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", tree / "dist")
    run(*build, cwd=tree, env=source.environment)
    [archive] = (tree / "dist").glob("*.tar.gz")
    run("tar", "-xf", archive, cwd=tree / "dist")
    pack(tree / "dist" / archive.name.removesuffix(".tar.gz"), output / archive.name, source.time)


def build_site(source: Source, output: Path) -> None:
    site = source.tree.parent / f"nsq_compat-{source.version}-docs"
    run(BIN / "python", source.copy("site") / "scripts/site", site, env=source.environment)
    pack(site, output / f"{site.name}.tar.gz", source.time)
