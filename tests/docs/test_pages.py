"""The commands of every page work as written, each page in a sandbox of its own (`sandbox.py`); and its blocks are read
correctly (`blocks.py`).
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import RUN, SHOWN, Block, Command, blocks, commands, matches
from tests.docs.pages import NOT_RUN, SETUPS, Setup
from tests.docs.sandbox import ROOT, run, search_path

FOLDERS = ("conformance", "benchmarks", "contrib")
SECONDS = 900
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
        "pasted": setup.pasted,
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
    assert len(NOT_RUN) <= 13


# --- Blocks -----------------------------------------------------------------------------------------------------------

PAGE = """# A page

    nsqd &
    curl one

    curl two

Text, and

- a list

```python
print(1)
```
```console
$ seq 2
1
2
$ curl \\
    three
$ cat empty
```

    >>> 1 + 1
    2
"""


def test_a_fenced_block_names_its_language_and_an_indented_one_is_shell_or_python():
    assert [(block.line, block.language, block.text) for block in blocks("a.md", PAGE)] == [
        (3, "sh", "nsqd &\ncurl one\n\ncurl two"),
        (13, "python", "print(1)"),
        (16, "console", "$ seq 2\n1\n2\n$ curl \\\n    three\n$ cat empty"),
        (24, "pycon", ">>> 1 + 1\n2"),
    ]


def test_a_console_block_has_commands_and_their_outputs():
    *_, console, _ = blocks("a.md", PAGE)
    assert commands(console) == [Command("seq 2", "1\n2"), Command("curl \\\n    three", ""), Command("cat empty", "")]
    with pytest.raises(ValueError, match="begins with a prompt"):
        commands(Block("a.md", 1, "console", "seq 2"))


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("one", "one\n", True),
        ("one", "two", False),
        ("one", "one\ntwo", False),
        ("", "", True),
        ("", "one", False),
        ("a ... c", "a b c", True),
        ("a ... c", "a b\nc", False),
        ("...\nlast", "first\nsecond\nlast", True),
        ("...\nlast", "last", True),
        ("...\nlast", "first", False),
        ("first\n...", "first\nsecond\nthird", True),
        ("first\n...", "first", True),
        ("first\n...", "second", False),
        ("first\n...\nlast", "first\na\nb\nlast", True),
        ("a column", "a column   \n", True),
    ],
)
def test_an_output_is_compared_with_the_one_that_the_page_shows(shown, output, same):
    assert matches(shown, output) is same
