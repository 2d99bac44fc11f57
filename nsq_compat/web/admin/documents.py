"""/docs: the documents of the project, for machines without access to another site.

Renders the Markdown that they use: headings, paragraphs, lists, tables, code, emphasis and links. Links that lead out
of the folder become text, because the package does not have their targets.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from flask import Blueprint, render_template, url_for
from markupsafe import Markup, escape

import nsq_compat
from nsq_compat.web.application import ApiError

documents = Blueprint("documents", __name__)

_FOLDER: Final = Path(nsq_compat.__file__).parent / "docs"
_NAME: Final = re.compile(r"[a-zA-Z-]+")


@documents.get("/docs")
@documents.get("/docs/<name>")
def show(name: str = "README") -> str:
    try:
        if not _NAME.fullmatch(name):
            raise FileNotFoundError(name)
        text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    except OSError:
        raise ApiError(404, "NOT_FOUND") from None
    title = text.partition("\n")[0].lstrip("# ")
    return render_template("documents/show.html", title=title, document=to_html(text, _address))


def _address(target: str) -> str:
    """The URL of a link in a document; empty if nsqadmin does not serve the target."""
    if target.startswith(("https://", "http://", "#")):
        return target
    path, _, anchor = target.partition("#")
    name = path.removesuffix(".md")
    if name == path or not _NAME.fullmatch(name):
        return ""
    return url_for("documents.show", name=name, _anchor=anchor or None)


# --- Markdown ---------------------------------------------------------------------------------------------------------

_TARGET: Final = re.compile(r'<a id="([\w-]+)"></a>')
_FENCE: Final = re.compile(r"```")
_HEADING: Final = re.compile(r"(#{1,6}) +(.*)")
_ITEM: Final = re.compile(r"(- |\d+\. )")
_INLINE: Final = re.compile(
    r"(?P<ticks>`{1,2})(?P<code>.+?)(?P=ticks)(?!`)"
    r"|!\[[^\]]*\]\([^)]*\)"  # images are not in the package
    r"|\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<target>[^)\s]+)\)"
    r"|<(?P<url>https?://[^>\s]+)>"
    r"|\*\*(?P<strong>(?:`[^`]*`|[^*`])+)\*\*"
    r"|\*(?P<emphasis>(?:`[^`]*`|[^*`\s])(?:`[^`]*`|[^*`])*)\*"
)


def to_html(text: str, address: Callable[[str], str]) -> Markup:
    """`address` returns the URL of a link's target; empty leaves out the link."""
    return Markup("\n").join(_blocks(text.splitlines(), lambda part: _inline(part, address)))


def _blocks(lines: list[str], inline: Callable[[str], Markup]) -> Iterator[Markup]:
    at = 0

    def take(belongs: Callable[[str], object]) -> list[str]:
        """The current line, and those after it that belong to it."""
        nonlocal at
        start, at = at, at + 1
        while at < len(lines) and belongs(lines[at]):
            at += 1
        return lines[start:at]

    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.startswith("<!--"):
            at += 1
        elif target := _TARGET.match(line):
            at += 1
            yield Markup('<span id="{}"></span>').format(target[1])
        elif _FENCE.match(line):
            code = take(lambda each: not _FENCE.match(each))[1:]
            at += 1
            yield Markup('<pre tabindex="0"><code>{}</code></pre>').format("\n".join(code))
        elif heading := _HEADING.match(line):
            at += 1
            level, title = len(heading[1]), heading[2]
            yield Markup('<h{0} id="{1}">{2}</h{0}>').format(level, _anchor(title), inline(title))
        elif line.startswith("|"):
            yield _table(take(lambda each: each.startswith("|")), inline)
        elif _ITEM.match(line):
            yield _list(take(lambda each: _ITEM.match(each) or not each.strip() or each.startswith("  ")), inline)
        else:
            words = take(lambda each: each.strip() and not each.startswith(("#", "|", "```")) and not _ITEM.match(each))
            if content := inline(" ".join(words)):
                yield Markup("<p>{}</p>").format(content)


def _list(lines: list[str], inline: Callable[[str], Markup]) -> Markup:
    items: list[list[str]] = []
    for line in lines:
        if item := _ITEM.match(line):
            items.append([line[len(item[1]) :]])
        else:
            indent = " " * (2 if lines[0].startswith("-") else 3)
            items[-1].append(line.removeprefix(indent))
    tag = "ul" if lines[0].startswith("-") else "ol"
    parts = Markup().join(Markup("<li>{}</li>").format(Markup().join(_blocks(each, inline))) for each in items)
    return Markup("<{0}>{1}</{0}>").format(tag, parts)


def _table(lines: list[str], inline: Callable[[str], Markup]) -> Markup:
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    head, body = rows[0], rows[2:]

    def cells(row: list[str], cell: str) -> Markup:
        return Markup().join(Markup(cell).format(inline(each.strip().replace("\\|", "|"))) for each in row)

    heads = cells(head, '<th scope="col">{}</th>')
    parts = Markup().join(Markup("<tr>{}</tr>").format(cells(row, "<td>{}</td>")) for row in body)
    table = "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>"
    return Markup(f'<div class="scroll" tabindex="0">{table}</div>').format(heads, parts)


def _inline(text: str, address: Callable[[str], str]) -> Markup:
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[end : found.start()]), _span(found, address)]
        end = found.end()
    return Markup().join([*parts, escape(text[end:])])


def _span(found: re.Match[str], address: Callable[[str], str]) -> Markup:
    if found["code"]:
        return Markup("<code>{}</code>").format(found["code"])
    if found["strong"] or found["emphasis"]:
        tag = "strong" if found["strong"] else "em"
        return Markup("<{0}>{1}</{0}>").format(tag, _inline(found["strong"] or found["emphasis"], address))
    target = found["url"] or found["target"]
    if not target:
        return Markup()
    content = _inline(found["text"], address) if found["text"] else escape(target)
    url = address(target)
    return Markup('<a href="{}">{}</a>').format(url, content) if url else content


def _anchor(title: str) -> str:
    """As on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
