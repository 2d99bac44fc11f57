"""/docs: the documents of the project, for machines without access to another site.

Links that lead out of the folder become text, and images are left out, because the package does not have their targets.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from html import unescape
from pathlib import Path
from typing import Any, Final

import mistune
from flask import Blueprint, render_template, request, url_for
from markupsafe import Markup

import nsq_compat
from nsq_compat.web.application import ApiError

documents = Blueprint("documents", __name__)

_FOLDER: Final = Path(nsq_compat.__file__).parent / "docs"
_NAME: Final = re.compile(r"[a-zA-Z-]+")
_ONLY_IN_REPOSITORY: Final = re.compile(
    r"<!-- Only in the repository\. -->.*?<!-- The end of what is only in the repository\. -->", re.S
)
"""A section that needs files which the package does not have."""
_TARGET: Final = re.compile(r'<a id="([\w-]+)">')


@documents.get("/docs")
@documents.get("/docs/<name>")
def show(name: str = "README") -> str:
    try:
        title, document = _document(name, request.script_root)
    except OSError:
        raise ApiError(404, "NOT_FOUND") from None
    return render_template("documents/show.html", title=title, document=document)


@lru_cache(maxsize=64)
def _document(name: str, root: str) -> tuple[str, Markup]:
    """Title and content, with links below this path. Cached, because converting takes long, and needs no login."""
    if not _NAME.fullmatch(name):
        raise FileNotFoundError(name)
    text = _ONLY_IN_REPOSITORY.sub("", (_FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    return text.partition("\n")[0].lstrip("# "), to_html(text, _address)


def _address(target: str) -> str:
    """The URL of a link in a document; empty if nsqadmin does not serve the target."""
    if target.startswith(("https://", "http://", "#")):
        return target
    path, _, anchor = target.partition("#")
    name = path.removesuffix(".md")
    if name == path or not _NAME.fullmatch(name):
        return ""
    return url_for("documents.show", name=name, _anchor=anchor or None)


def to_html(text: str, address: Callable[[str], str]) -> Markup:
    """`address` returns the URL of a link's target; empty leaves out the link."""
    return Markup(mistune.create_markdown(renderer=_Renderer(address), plugins=["table"])(text))


class _Renderer(mistune.HTMLRenderer):
    """Escapes HTML in documents. Code blocks and tables scroll by themselves, also with the keyboard."""

    def __init__(self, address: Callable[[str], str]) -> None:
        super().__init__(escape=True)
        self._address = address

    def heading(self, text: str, level: int, **_: Any) -> str:
        # As on GitHub.
        plain = unescape(re.sub(r"<[^>]+>", "", text))
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def paragraph(self, text: str) -> str:
        # Of a paragraph of images nothing is left.
        return super().paragraph(text) if text.strip() else ""

    def link(self, text: str, url: str, title: str | None = None) -> str:
        target = self._address(url)
        return super().link(text, target, title) if target else text

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return ""

    def codespan(self, text: str) -> str:
        # In tables, the bar is escaped also in code.
        return super().codespan(text.replace("\\|", "|"))

    def block_code(self, code: str, info: str | None = None) -> str:
        return super().block_code(code).replace("<pre>", '<pre tabindex="0">', 1)

    def block_html(self, html: str) -> str:
        return self.inline_html(html)

    def inline_html(self, html: str) -> str:
        """Targets of links are kept; comments and all else are left out."""
        target = _TARGET.match(html)
        return f'<span id="{target[1]}"></span>' if target else ""

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'
