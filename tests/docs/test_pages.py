"""Every page does what it says: its blocks are run as they stand, on a machine of their own (`machine.py`)."""

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import RUN, SHOWN, Block, blocks
from tests.docs.machine import ROOT, run, search_path
from tests.docs.pages import NOT_RUN, SCENES, Scene

FOLDERS = ("conformance", "benchmarks", "contrib")
SECONDS = 300
OUR_PROGRAMS = ("nsq", "to_nsq", "curl", "pip", "python")


def pages() -> list[str]:
    found = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / folder / "README.md" for folder in FOLDERS)]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks_of(page: str) -> list[Block]:
    return list(blocks(page, (ROOT / page).read_text()))


def all_blocks() -> Iterator[Block]:
    for page in pages():
        yield from blocks_of(page)


def names(block: Block) -> set[tuple[str, str]]:
    """Under which it may be declared not to be run."""
    return {(block.page, block.first_line), (block.page, f"```{block.language}")}


def is_run(block: Block) -> bool:
    return block.language in RUN and not names(block) & NOT_RUN.keys()


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("page", [page for page in pages() if any(map(is_run, blocks_of(page)))])
def test_a_page_does_what_it_says(page, tmp_path, request):
    scene = SCENES.get(page, Scene())
    # Who has installed nothing has the Python that the tests' environment was made of.
    programs = Path(sys.base_prefix) / "bin" if scene.bare else Path(sys.executable).parent
    plan = {
        "before": scene.before,
        "blocks": [asdict(block) for block in blocks_of(page) if is_run(block)],
        "folder": str(ROOT if scene.in_checkout else tmp_path / "here"),
        "environment": {
            "PATH": search_path(programs),
            "PROGRAMS": str(Path(sys.executable).parent),
            "HOME": str(tmp_path / "here"),
            **(request.getfixturevalue("release").offline if scene.installs else {}),
        },
    }
    (tmp_path / "here").mkdir()
    # As at a terminal, where the answer is seen and no progress of it.
    (tmp_path / "here" / ".curlrc").write_text("silent\nshow-error\n")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    conductor = [sys.executable, "-m", "tests.docs.conductor", str(tmp_path)]
    log = run(conductor, tmp_path, hosts=scene.hosts, addresses=scene.addresses, timeout=SECONDS)
    verdict = tmp_path / "verdict"
    assert verdict.exists(), log
    assert not verdict.read_text(), f"{verdict.read_text()}\n{log}"


def test_every_block_is_run_or_declared():
    assert [str(block) for block in all_blocks() if block.language not in RUN | SHOWN] == []


def test_what_is_only_shown_is_no_command_and_can_be_read():
    for block in all_blocks():
        if block.language == "text":
            assert not block.text.startswith(OUR_PROGRAMS), block
        elif block.language == "toml":
            assert tomllib.loads(block.text), block
        elif block.language in ("yaml", "json"):
            assert yaml.safe_load(block.text), block


def test_what_is_declared_not_to_be_run_is_there_and_has_a_reason():
    there = [name for block in all_blocks() if block.language in RUN for name in names(block)]
    assert [name for name in NOT_RUN if name not in there or (there.count(name) > 1 and "```" not in name[1])] == []
    assert all(NOT_RUN.values())
    assert set(SCENES) <= set(pages())


def test_few_blocks_are_not_run():
    assert len(NOT_RUN) <= 12
