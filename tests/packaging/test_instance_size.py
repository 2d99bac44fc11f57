"""The number of attributes of classes on the message path."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

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
    return {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
