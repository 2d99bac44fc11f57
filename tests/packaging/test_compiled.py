"""The modules of [compiled] in setup.cfg are compiled if a build can, and only there; classes on the message path stay
small.
"""

import ast
import fnmatch
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from nsq_compat import __version__
from tests.packaging.release import ROOT, settings

COMPILED = settings()["compiled"]
IS_COMPILED = os.environ.get("NSQ_COMPAT_COMPILED") == "1"  # set by scripts/test in its second run


def loaded_setup() -> ModuleType:
    """setup.py as a module; it builds nothing unless it is run."""
    spec = spec_from_file_location("nsq_compat_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files() -> list[Path]:
    """Those in the folders of [compiled]."""
    return [file for folder in COMPILED["folders"].split() for file in (ROOT / "nsq_compat" / folder).glob("*.py")]


MODULES: list[str] = loaded_setup().compiled_modules(ROOT)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_compiled_if_requested(name: str):
    file = import_module(f"nsq_compat.{name}").__file__
    assert file is not None
    assert Path(file).suffix == (".so" if IS_COMPILED else ".py")


def test_a_module_of_the_folders_is_compiled_unless_it_is_an_exception(tmp_path: Path):
    for name in ("queue/__init__.py", "queue/topic.py", "queue/go_data.py", "queue/seam.py", "web/query.py"):
        (tmp_path / "nsq_compat" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nsq_compat" / name).touch()
    exceptions = ("# Read once.", "queue.go_*", "queue.seam")
    written = "[compiled]\nfolders = queue\nexceptions =\n" + "".join(f"    {line}\n" for line in exceptions)
    (tmp_path / "setup.cfg").write_text(written)
    assert loaded_setup().compiled_modules(tmp_path) == ["queue.topic"]


def test_every_exception_is_an_existing_module():
    modules = [f"{file.parent.name}.{file.stem}" for file in files()]
    assert [each for each in COMPILED["exceptions"].split() if not fnmatch.filter(modules, each)] == []


def test_hot_modules_of_nsqd_are_compiled():
    clients = {"session.client_session"}
    hot = {f"{file.parent.name}.{file.stem}" for file in files() if "# Hot: " in file.read_text("utf-8")}
    assert hot - set(MODULES) == clients


def test_the_nsqd_that_tests_start_is_compiled_if_requested():
    nsqd = Path(sys.executable).with_name("nsqd")
    said = subprocess.run([nsqd, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[0].endswith("-compiled)") == IS_COMPILED
    assert said.endswith(", compiled: yes\n") == IS_COMPILED


def test_a_python_without_sqlite_compiles_too(tmp_path: Path):
    (tmp_path / "small.py").write_text("def twice(number: int) -> int:\n    return 2 * number\n")
    program = (
        "import sys; sys.modules['_sqlite3'] = sys.modules['sqlite3'] = None\n"
        "from mypyc.build import mypycify; print(mypycify([*sys.argv[1:], 'small.py'])[0].sources)"
    )
    command = (sys.executable, "-c", program, *loaded_setup().MYPY_OPTIONS)
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ([], "no (install gcc and python3-dev, then reinstall without NSQ_COMPAT_COMPILED=0)"),
        (
            ["setup.py"],
            "no (a checkout is interpreted: install gcc and python3-dev, then install it without --editable)",
        ),
    ],
)
def test_what_is_interpreted_says_how_it_is_compiled(files: list[str], advice: str, tmp_path: Path) -> None:
    (tmp_path / "nsq_compat").mkdir()
    shutil.copy(ROOT / "nsq_compat" / "__init__.py", tmp_path / "nsq_compat")
    for name in files:
        (tmp_path / name).touch()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import nsq_compat; print(nsq_compat.build_line())"
    # -I -S: without compiled modules that may be installed or on PYTHONPATH.
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"nsq_compat {__version__}, compiled: {advice}\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree for builds, with one module."""
    (tmp_path / "nsq_compat").mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "nsq_compat/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_an_editable_installation_is_not_compiled(tree: Path):
    result = build(tree, "1", "cc", "setup.py", "editable_wheel")
    assert result.returncode != 0
    assert "an editable installation is interpreted" in result.stderr


@pytest.mark.parametrize(
    ("choice", "compiler", "wanted"),
    [
        ("", "cc", "['mypy=="),
        ("1", "cc", "['mypy=="),
        ("0", "cc", "[]"),
        ("", "false", "[]"),
        ("", "/no/such/compiler", "[]"),
        ("1", "false", "NSQ_COMPAT_COMPILED=1: false does not find Python.h, or does not work."),
        ("1", "/no/such/compiler", "NSQ_COMPAT_COMPILED=1: no C compiler"),
        ("yes", "cc", "NSQ_COMPAT_COMPILED=yes: must be 0, 1 or empty."),
    ],
)
def test_a_build_compiles_if_it_can_and_fails_only_if_it_must(choice: str, compiler: str, wanted: str, tree: Path):
    asked = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
    result = build(tree, choice, compiler, "-c", asked)
    assert wanted in (result.stderr if result.returncode else result.stdout.splitlines()[-1])


def test_a_wheel_built_without_a_compiler_is_platform_independent(tree: Path):
    result = build(tree, "", "false", "setup.py", "--quiet", "bdist_wheel")
    assert "nsq_compat is not compiled: false does not find Python.h" in result.stderr
    [wheel] = (tree / "dist").glob("*")
    assert wheel.name.endswith("-py3-none-any.whl")


def build(tree: Path, choice: str, compiler: str, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "NSQ_COMPAT_COMPILED": choice, "CC": compiler}
    environment.pop("PYTHONPATH", None)  # in scripts/test it has the compiled modules
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)


# --- Instances --------------------------------------------------------------------------------------------------------

MAX_ATTRIBUTES = 29
"""CPython 3.11 to 3.13 store up to this number of attributes inline. With more, every access uses the instance's dict;
with 32 attributes of a session and 33 of a channel, a FIN took 4 % more instructions."""


def test_classes_on_the_message_path_have_no_more_attributes_than_cpython_keeps_inline():
    hot = [path for path in (ROOT / "nsq_compat").rglob("*.py") if "# Hot" in path.read_text()]
    assert hot
    classes = [node for path in hot for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    sizes = {each.name: len(attributes_of(each)) for each in classes}
    assert {name: size for name, size in sizes.items() if size > MAX_ATTRIBUTES} == {}


def test_attributes_are_counted_however_they_are_assigned():
    (example,) = ast.parse("class C:\n def f(self):\n  self.a, self.b = 1, 2\n  self.c: int = 3\n  self.a += x.d").body
    assert attributes_of(example) == {"a", "b", "c"}


def attributes_of(class_):
    nodes = [node for node in ast.walk(class_) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "self"}
