"""What of a page is a block, and when an output is the one that is shown."""

import pytest

from tests.docs.blocks import Block, Command, blocks, commands, is_as_shown

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


def test_fenced_blocks_have_their_language_and_indented_ones_are_commands_or_python():
    assert [(block.line, block.language, block.text) for block in blocks("a.md", PAGE)] == [
        (3, "sh", "nsqd &\ncurl one\n\ncurl two"),
        (13, "python", "print(1)"),
        (16, "console", "$ seq 2\n1\n2\n$ curl \\\n    three\n$ cat empty"),
        (24, "pycon", ">>> 1 + 1\n2"),
    ]


def test_a_console_is_commands_and_what_each_of_them_says():
    *_, console, _ = blocks("a.md", PAGE)
    assert commands(console) == [Command("seq 2", "1\n2"), Command("curl \\\n    three", ""), Command("cat empty", "")]
    with pytest.raises(ValueError, match="begins with a prompt"):
        commands(Block("a.md", 1, "console", "seq 2"))


@pytest.mark.parametrize(
    ("shown", "said", "same"),
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
def test_an_output_is_compared_with_what_is_shown(shown, said, same):
    assert is_as_shown(shown, said) is same
