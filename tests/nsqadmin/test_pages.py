"""Every page in a real Chromium, in several clusters, wide and narrow, light and dark: accessible, and not cut off."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.nsqadmin import showcase
from tests.nsqadmin.browser import Browser
from tests.nsqadmin.showcase import Site, visit

_AXE: Final = """
    const [rules, done] = arguments;
    axe.run({resultTypes: ['violations'], preload: false, ...rules}).then(
        ({violations}) => done(violations.flatMap(({id, help, nodes}) =>
            nodes.map(node => `${id}: ${help}: ${node.html} (${node.failureSummary})`))),
        error => done([String(error)]))"""

_CUT: Final = """
    const found = [];
    const seen = each => each.checkVisibility({visibilityProperty: true}) && !each.closest('.hidden, .skip');
    const say = (what, each) => found.push(`${what}: ${each.outerHTML.slice(0, 160)}`);
    if (document.scrollingElement.scrollWidth > innerWidth) say('wider than the window', document.body);
    for (const each of document.body.querySelectorAll('*')) {
        if (!seen(each) || each.closest('svg')) continue;
        const style = getComputedStyle(each);
        const [across, down] = [each.scrollWidth > each.clientWidth + 1, each.scrollHeight > each.clientHeight + 1];
        if (across && style.overflowX !== 'visible' && !each.matches('input, textarea, select'))
            say('cut at the side', each);
        if (down && ['hidden', 'clip'].includes(style.overflowY)) say('cut below', each);
        if (across && style.display !== 'inline' && each.matches('button, .button, .tag, th, td, dt, dd, summary'))
            say('too narrow for its text', each);
    }
    for (const text of document.querySelectorAll('svg text')) {
        if (!seen(text)) continue;
        const [inner, outer] = [text, text.ownerSVGElement].map(each => each.getBoundingClientRect());
        if (inner.left < outer.left - 1 || inner.right > outer.right + 1) say('outside of its plot', text);
    }
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode, parent = text.parentElement;
        if (!text.data.trim() || parent.closest('svg, script, select, textarea') || !seen(parent)) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        let block = parent;
        while (getComputedStyle(block).display === 'inline') block = block.parentElement;
        const cell = block.getBoundingClientRect();
        for (const box of range.getClientRects())
            if (box.left < -1 || box.right > innerWidth + 1 || box.right > cell.right + 1 || box.left < cell.left - 1)
                say(`text outside of its box (${text.data.trim().slice(0, 40)})`, parent);
    }
    return [...new Set(found)]"""

CLUSTERS: Final[tuple[Callable[[Path], AbstractContextManager[Site]], ...]] = (
    *(showcase.shop, showcase.widest, showcase.viewer, showcase.empty, showcase.down),
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, with the version of the lock file, from the registry that npm is configured for."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is needed to install axe-core, which checks the pages: put it on PATH")
    folder = tmp_path_factory.mktemp("axe")
    for file in Path(__file__).with_name("axe").iterdir():
        shutil.copy(file, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    install = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert install.returncode == 0, install.stderr
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest.fixture
def inspector(axe: str, chromium: Browser) -> Iterator[Browser]:
    """A window with axe-core in every page."""
    chromium.start_over()
    chromium.devtools("Page.enable")
    added = chromium.devtools("Page.addScriptToEvaluateOnNewDocument", source=axe)
    yield chromium
    chromium.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.__name__)
def test_every_page_is_accessible_and_nothing_is_cut_off(cluster: Any, inspector: Browser, tmp_path: Path):
    problems, asked = [], False
    with cluster(tmp_path) as site:
        inspector.open(site.url("/livez"))
        # A page that is replaced while it is inspected would be inspected in part.
        inspector.run("localStorage.setItem('nsqadmin.paused', '1')")
        for page in ("before logging in", "logged in") if site.user else ("",):
            if page == "logged in":
                site.log_in(inspector)
            for path in visit(inspector, site):
                problems += [f"{page} {path} {problem}" for problem in _problems(inspector)]
                if not asked and inspector.run("return document.querySelector('a[data-dialog][href]') !== null"):
                    inspector.click("a[data-dialog][href]")
                    inspector.find("dialog[open]")
                    problems += [f"{page} {path}, dialog: {problem}" for problem in _problems(inspector)]
                    asked = True
    assert not problems, "\n".join(problems)


def _problems(browser: Browser) -> list[str]:
    """In each width and colour scheme, with every fold open."""
    found = []
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    for width in (1280, 390):
        browser.resize(width, 900)
        found += [f"at {width}: {each}" for each in browser.run(_CUT)]
        found += [f"at {width}: {each}" for each in browser.call_async(_AXE, {})]
    browser.prefer("dark")
    found += [f"dark: {each}" for each in browser.call_async(_AXE, {"runOnly": ["color-contrast"]})]
    browser.prefer("light")
    browser.resize(1280, 900)
    return found
