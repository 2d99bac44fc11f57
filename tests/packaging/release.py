"""A release, built once for all tests: source archive, wheel, their requirements, and environments with them.

Requirements are downloaded once; later builds and installations need no network.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
_OFFLINE = {"PIP_NO_INDEX": "1", "NSQ_COMPAT_COMPILED": "0"}
_NOT_SOURCES = shutil.ignore_patterns(
    ".*_cache", ".git", ".hypothesis", ".venv", "__pycache__", "*.egg-info", "build", "dist", "node_modules"
)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its output; fails with the output if the command fails."""
    result = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=250, cwd=cwd, env={**os.environ, **environment}
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


def settings() -> ConfigParser:
    """The settings in setup.cfg."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def words(text: str) -> list[str]:
    """The lines of a list in setup.cfg."""
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def console_scripts() -> list[str]:
    """The programs, without nsq-conformance."""
    lines = words(settings()["options.entry_points"]["console_scripts"])
    return [line.partition(" ")[0] for line in lines if "nsq_compat." in line]


def build_requirements() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        required: list[str] = tomllib.load(file)["build-system"]["requires"]
    return required


class Release:
    """A release in a folder that several test processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        """The requirements of the wheel and of building it, as files."""

    @property
    def archive(self) -> Path:
        [path] = (self._built() / "dist").glob("*.tar.gz")
        return path

    @property
    def wheel(self) -> Path:
        [path] = (self._built() / "dist").glob("*.whl")
        return path

    @property
    def offline(self) -> dict[str, str]:
        """Environment variables for pip: use local files only, and do not compile, which takes minutes."""
        self._built()
        places = f"{self.packages} {self.folder / 'tree' / 'dist'}"
        return {**_OFFLINE, "PIP_FIND_LINKS": places, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def installed(self, extras: str = "") -> Path:
        """The folder of programs of a new environment with only the wheel and these extras."""
        home = self.folder / f"installed-{extras or 'core'}"
        offline, wanted = self.offline, f"{self.wheel}{f'[{extras}]' if extras else ''}"
        with self._once(home) as missing:
            if missing:
                run(sys.executable, "-m", "venv", "--without-pip", home, cwd=self.folder)
                pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet")
                run(*pip, "--constraint", CONSTRAINTS, wanted, cwd=self.folder, **offline)
        return home / "bin"

    def made(self, name: str, make: Callable[[Path], None]) -> Path:
        """A folder with this name, which the first process that needs it makes."""
        folder = self.folder / name
        with self._once(folder) as missing:
            if missing:
                make(folder)
        return folder

    def _built(self) -> Path:
        tree = self.folder / "tree"
        with self._once(tree) as missing:
            if missing:
                self._download()
                shutil.copytree(ROOT, tree, symlinks=True, ignore=_NOT_SOURCES)
                run(sys.executable, "-m", "build", cwd=tree, **_OFFLINE, PIP_FIND_LINKS=str(self.packages))
        return tree

    def _download(self) -> None:
        parser = settings()
        extras = parser["options.extras_require"]
        wanted = words(parser["options"]["install_requires"]) + build_requirements() + ["build", "pip", "wheel"]
        wanted += [
            line
            for extra in ("admin", "conformance", "metrics", "oidc", "pyopenssl", "snappy")
            for line in words(extras[extra])
        ]
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        run(*pip, "--dest", self.packages, "--constraint", CONSTRAINTS, *wanted, cwd=self.folder)

    @contextmanager
    def _once(self, what: Path) -> Iterator[bool]:
        """Whether this process is to make it; other processes wait until it exists."""
        done = what.with_name(f"{what.name}.done")
        with what.with_name(f"{what.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield not done.exists()
            done.touch()
