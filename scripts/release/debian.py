"""Debian packages of what is in the tarball: one for each daemon, the utilities, and the runtime that all need."""

import gzip
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scripts.release.source import run

DAEMONS: Final = ("nsqd", "nsqlookupd", "nsqadmin")
RUNTIME: Final = "nsq-compat-runtime"
MAINTAINER: Final = "nsq_compat contributors <nsq_compat@localhost>"
SCRIPTS: Final = ("postinst", "prerm", "postrm")
HOME: Final = "usr/lib/nsq-compat"
"""The folders bin and lib of the tarball."""

SUMMARIES: Final = {
    "nsq-compat-nsqd": "NSQ message queue: the daemon that keeps messages",
    "nsq-compat-nsqlookupd": "NSQ message queue: the directory of topics",
    "nsq-compat-nsqadmin": "NSQ message queue: web interface",
    "nsq-compat-utils": "NSQ message queue: utilities",
    RUNTIME: "NSQ message queue: Python and libraries of nsq_compat",
}
DESCRIPTIONS: Final = {
    "nsq-compat-nsqd": "nsqd receives, stores and delivers messages.",
    "nsq-compat-nsqlookupd": "nsqlookupd tells consumers which nsqd has a topic.",
    "nsq-compat-nsqadmin": "nsqadmin shows and controls a cluster in the browser.",
    "nsq-compat-utils": "This package has nsq_tail, nsq_to_file, nsq_data and the other utilities.",
    RUNTIME: "This package has a Python of its own, and all that the programs of the other packages import.",
}
LIBRARIES: Final = {
    "libstdc++6": ("libstdc++.so.6",),
    "libgcc-s1": ("libgcc_s.so.1",),
    "libc6": ("ld-linux", "libc.so", "libdl.so", "libm.so", "libpthread.so", "librt.so", "libutil.so"),
}
"""The libraries of the system that the runtime may load, by their packages."""


def build_packages(tarball: Path, tree: Path, output: Path, version: str, time: str, compression: str = "xz") -> None:
    """Build the packages from a tarball, and the files in contrib below `tree`."""
    [machine] = re.findall(r"\.linux-(\w+)\.tar\.gz$", tarball.name)
    with tempfile.TemporaryDirectory(prefix="debian-") as work:
        run("tar", "-xf", tarball, "-C", work, "--no-same-owner", "--strip-components=1", "--one-top-level=home")
        parts = Parts(Path(work, "home"), tree, Path(work), version, time)
        roots = [parts.runtime(), *map(parts.daemon, DAEMONS), parts.utilities()]
        for root in roots:
            name = root.name
            parts.control(root, machine)
            settle(root, time)
            package = output / f"{name}_{parts.version}_{machine}.deb"
            environment = {"SOURCE_DATE_EPOCH": time, "LC_ALL": "C.UTF-8"}
            run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, package, env=environment)


class Parts:
    """The trees of the packages."""

    def __init__(self, home: Path, tree: Path, work: Path, version: str, time: str) -> None:
        self.home, self.tree, self.work, self.time = home, tree, work, time
        self.files = tree / "contrib/debian"
        self.version = f"{version}-1"

    def runtime(self) -> Path:
        root = self.work / RUNTIME
        shutil.copytree(self.home / "lib", root / HOME / "lib")
        documents = root / "usr/share/doc" / RUNTIME
        documents.mkdir(parents=True)
        (documents / "copyright").write_text(self.copyright())
        compress((self.home / "CHANGELOG.md").read_text(), documents / "changelog.gz")
        date = datetime.fromtimestamp(int(self.time), UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
        entry = f"  * Version {self.version.partition('-')[0]}: see changelog.gz."
        text = f"nsq-compat ({self.version}) unstable; urgency=medium\n\n{entry}\n\n -- {MAINTAINER}  {date}\n"
        compress(text, documents / "changelog.Debian.gz")
        return root

    def daemon(self, name: str) -> Path:
        root = self.programs(f"nsq-compat-{name}", [name])
        # nsqd also has a target for several nodes, which stops and starts all of them.
        units = f"{name}.service nsqd.target" if name == "nsqd" else f"{name}.service"
        values = {"daemon": name, "units": units, "variable": f"{name.upper()}_OPTIONS"}
        write(root / "etc/nsq" / f"{name}.cfg", (self.files / f"{name}.cfg").read_text())
        write(root / "etc/default" / name, fill((self.files / "default").read_text(), values))
        for path in (self.tree / "contrib/systemd").iterdir():
            if path.stem.rstrip("@") == name:
                start = f"ExecStart=/usr/bin/{name} --config=/etc/nsq/{name}.cfg"
                unit = path.read_text().replace(f"ExecStart=/usr/local/bin/{name}", start)
                unit = unit.replace("Documentation=", f"Documentation=man:{name}(1) ")
                write(root / "usr/lib/systemd/system" / path.name, unit)
        for script in SCRIPTS:
            further = "".join(path.read_text() for path in self.files.glob(f"{name}.{script}"))
            text = (self.files / script).read_text().replace("@further@\n", further)
            write(root / "DEBIAN" / script, fill(text, values))
        return root

    def utilities(self) -> Path:
        names = sorted(path.name for path in (self.home / "bin").iterdir())
        return self.programs("nsq-compat-utils", [name for name in names if name not in DAEMONS])

    def programs(self, package: str, names: list[str]) -> Path:
        """A tree with programs, their manual pages, and the documents of the runtime."""
        root = self.work / package
        for folder in ("usr/bin", f"{HOME}/bin", "usr/share/man/man1", "usr/share/doc"):
            (root / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(self.home / "bin" / name, root / HOME / "bin")
            (root / "usr/bin" / name).symlink_to(f"../lib/nsq-compat/bin/{name}")
            page = self.home / f"share/man/man1/{name}.1"
            compress(page.read_text(), root / f"usr/share/man/man1/{name}.1.gz")
        (root / "usr/share/doc" / package).symlink_to(RUNTIME)
        return root

    def control(self, root: Path, machine: str) -> None:
        """The files of the folder DEBIAN that every package has, and the reasons for what lintian reports."""
        name = root.name
        overrides = [self.files / "lintian-overrides", *self.files.glob(f"{name}.lintian-overrides")]
        text = "".join(path.read_text() for path in overrides)
        write(root / "usr/share/lintian/overrides" / name, text)
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        files = [path for path in files if path.parent.name != "DEBIAN"]
        fields = {
            "Package": name,
            "Source": "nsq-compat",
            "Version": self.version,
            "Architecture": machine,
            "Maintainer": MAINTAINER,
            "Installed-Size": str(sum(-(-path.stat().st_size // 1024) for path in files)),
            **self.relations(root),
            "Section": "net",
            "Priority": "optional",
        }
        lines = [f"{key}: {value}" for key, value in fields.items()]
        about = "nsq_compat is NSQ, a realtime distributed message queue, for NSQ's clients. " + DESCRIPTIONS[name]
        lines += [f"Description: {SUMMARIES[name]}", textwrap.indent(textwrap.fill(about, 78), " ")]
        write(root / "DEBIAN/control", "\n".join(lines) + "\n")
        sums = run("md5sum", *(path.relative_to(root) for path in files), cwd=root)
        write(root / "DEBIAN/md5sums", sums)
        if kept := "".join(f"/{path.relative_to(root)}\n" for path in files if root / "etc" in path.parents):
            write(root / "DEBIAN/conffiles", kept)

    def relations(self, root: Path) -> dict[str, str]:
        """The fields for other packages."""
        if root.name == RUNTIME:
            # dpkg calls the prerm of daemons of another version, which stops them, before it replaces the runtime.
            daemons = [f"nsq-compat-{name} ({other} {self.version})" for name in DAEMONS for other in ("<<", ">>")]
            return {"Depends": ", ".join(system_libraries(root)), "Breaks": ", ".join(daemons)}
        users = ["passwd"] if root.name == "nsq-compat-nsqd" else []
        return {"Depends": ", ".join([f"{RUNTIME} (= {self.version})", *users])}

    def copyright(self) -> str:
        """The licenses of nsq_compat, and of everything that comes with it."""
        text = ["nsq_compat, from which scripts/release built this package:\n", (self.home / "LICENSE").read_text()]
        text.append("The package has a Python and libraries in /usr/lib/nsq-compat/lib, each under its own license:\n")
        for title, path in licenses(self.home / "lib"):
            text += [f"{'-' * 78}\n{title}\n{'-' * 78}\n", path.read_text(errors="replace")]
        return "\n".join(text)


def settle(root: Path, time: str) -> None:
    """Set times, and modes whatever the umask. Some packages of Python have executable modules and libraries."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.parent.name == "bin" or path.name in ("python3", *SCRIPTS)
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (int(time), int(time)), follow_symlinks=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def compress(text: str, path: Path) -> None:
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)


def licenses(lib: Path) -> Iterator[tuple[str, Path]]:
    """Texts with what they are the license of."""
    for path in sorted((lib / "licenses").glob("*")):
        yield path.name, path
    for folder in sorted((lib / "packages").glob("*.dist-info")):
        for path in sorted(folder.rglob("*")):
            if re.match(r"LICENSE|NOTICE|COPYING|AUTHORS", path.name) and path.is_file():
                yield f"{folder.name.removesuffix('.dist-info')}: {path.name}", path


def system_libraries(root: Path) -> list[str]:
    """The Debian packages with the libraries that are loaded and not in the tree, and the oldest glibc."""
    programs = [path for path in root.rglob("*") if path.is_file() and path.read_bytes().startswith(b"\x7fELF")]
    said = run("objdump", "--private-headers", *programs) if programs else ""
    own = {path.name for path in root.rglob("*.so*")}
    packages = set()
    for name in sorted(set(re.findall(r"^ +NEEDED +(\S+)$", said, re.MULTILINE)) - own):
        found = [package for package, names in LIBRARIES.items() if name.startswith(names)]
        if not found:
            sys.exit(f"{name} is not in the tarball, and it is not known in which Debian package it is.")
        packages.add(found[0])
    glibc = max((int(minor) for minor in re.findall(r" GLIBC_2\.(\d+)", said)), default=0)
    return [f"libc6 (>= 2.{glibc})" if each == "libc6" else each for each in sorted(packages)]
