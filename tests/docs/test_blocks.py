"""The blocks of a page, and the comparison of outputs."""

import pytest

from tests.docs.blocks import Block, Command, blocks, commands, matches

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
