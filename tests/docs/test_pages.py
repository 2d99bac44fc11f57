"""The commands of every page work as written. Each page is run in a sandbox of its own (`sandbox.py`)."""

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import RUN, SHOWN, Block, blocks
from tests.docs.pages import NOT_RUN, SETUPS, Setup
from tests.docs.sandbox import ROOT, run, search_path

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
    """The keys under which `NOT_RUN` may list a block."""
    return {(block.page, block.first_line), (block.page, f"```{block.language}")}


def is_run(block: Block) -> bool:
    return block.language in RUN and not names(block) & NOT_RUN.keys()


@pytest.mark.privileged
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("page", [page for page in pages() if any(map(is_run, blocks_of(page)))])
def test_the_commands_of_a_page_work(page, tmp_path, request):
    setup = SETUPS.get(page, Setup())
    # A machine with nothing installed has the Python from which the tests' environment was made.
    programs = Path(sys.base_prefix) / "bin" if setup.bare else Path(sys.executable).parent
    plan = {
        "before": setup.before,
        "blocks": [asdict(block) for block in blocks_of(page) if is_run(block)],
        "folder": str(ROOT if setup.in_checkout else tmp_path / "here"),
        "environment": {
            "PATH": search_path(programs),
            "PROGRAMS": str(Path(sys.executable).parent),
            "HOME": str(tmp_path / "here"),
            **(request.getfixturevalue("release").offline if setup.installs else {}),
        },
    }
    (tmp_path / "here").mkdir()
    # Without progress meters, as in a terminal.
    (tmp_path / "here" / ".curlrc").write_text("silent\nshow-error\n")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    runner = [sys.executable, "-m", "tests.docs.page_runner", str(tmp_path)]
    log = run(runner, tmp_path, hosts=setup.hosts, addresses=setup.addresses, timeout=SECONDS)
    verdict = tmp_path / "verdict"
    assert verdict.exists(), log
    assert not verdict.read_text(), f"{verdict.read_text()}\n{log}"


def test_every_block_is_run_or_listed():
    assert [str(block) for block in all_blocks() if block.language not in RUN | SHOWN] == []


def test_a_block_that_is_not_run_has_no_command_of_ours_and_can_be_parsed():
    for block in all_blocks():
        if block.language == "text":
            assert not block.text.startswith(OUR_PROGRAMS), block
        elif block.language == "toml":
            assert tomllib.loads(block.text), block
        elif block.language in ("yaml", "json"):
            assert yaml.safe_load(block.text), block


def test_every_block_listed_as_not_run_exists_and_has_a_reason():
    existing = [name for block in all_blocks() if block.language in RUN for name in names(block)]
    assert [
        name for name in NOT_RUN if name not in existing or (existing.count(name) > 1 and "```" not in name[1])
    ] == []
    assert all(NOT_RUN.values())
    assert set(SETUPS) <= set(pages())


def test_few_blocks_are_not_run():
    assert len(NOT_RUN) <= 12
