"""`scripts/environment` installs nothing if the requested extras are installed already."""

import shutil
import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[2] / "scripts" / "environment"


@pytest.mark.parametrize(
    ("asked", "found"),
    [("demo", True), ("bench demo", True), ("demo lint", False), ("dem", False), ("demo elsewhere", False)],
)
def test_an_installation_with_more_extras_is_sufficient(asked: str, found: bool, tmp_path: Path) -> None:
    for folder in ("scripts", ".venv"):
        (tmp_path / folder).mkdir()
    shutil.copy(ENVIRONMENT, tmp_path / "scripts")
    (tmp_path / ".venv" / "installed-demo,test,bench").write_text("as it is\n")
    (tmp_path / ".venv" / "installed-demo,elsewhere").write_text("as it was\n")
    script = f'set -euo pipefail; source scripts/environment; is_installed "as it is" {asked}'
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, check=False)
    assert (run.returncode == 0) == found
