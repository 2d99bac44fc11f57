"""Every page in a real Chromium, in several clusters, wide and narrow, light and dark: accessible, and not cut off."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.nsqadmin import showcase
from tests.nsqadmin.browser import Browser
from tests.nsqadmin.showcase import Site, visit

_FIND_PARTS: Final = """
    // Find the elements that axe has to inspect, those with keys that are not in `known`, and return their keys. A key
    // consists of what axe's rules look at: tags, attributes and styles of the element and of those that contain it;
    // of texts, only whether there is one. What is in an element counts unless it is a box, which is not named by it.
    const [known, view] = [new Set(arguments[0]), arguments[1]];
    const hash = text => {
        let [high, low] = [0xdeadbeef, 0x41c6ce57];
        for (let index = 0; index < text.length; index++) {
            high = Math.imul(high ^ text.charCodeAt(index), 2654435761);
            low = Math.imul(low ^ text.charCodeAt(index), 1597334677);
        }
        return (high >>> 0) * 0x100000 + (low >>> 12);
    };
    const texts_of = ids => ids.split(' ').map(id => document.getElementById(id)?.textContent.trim() ?? '').join('');
    const name_of = each => each.getAttribute('aria-label') ?? texts_of(each.getAttribute('aria-labelledby') ?? '');
    const all = [...document.body.querySelectorAll('*')];
    const is_landmark = each => /^(section|nav|form|aside|header|footer|main)$/.test(each.localName);
    const landmarks = all.filter(is_landmark).map(each => each.localName + name_of(each));
    const boxes = 'body main header footer nav section article aside div form fieldset details dialog figure p table ' +
        'thead tbody tfoot tr td ul ol dl li dd svg g';
    const is_box = each => boxes.split(' ').includes(each.localName);
    const by_value = /^(class|role|type|scope|(col|row)span|tabindex|lang|autocomplete|aria-(?!label|desc|con|own).*)$/;
    const by_text = /^(for|aria-(labelledby|describedby|controls|owns))$/;
    let level = '';
    const key_of = each => {
        const style = getComputedStyle(each);
        const seen = each.checkVisibility({visibilityProperty: true, opacityProperty: true});
        const parts = [each.localName, seen, each.disabled, each.open, style.display, style.position, style.color,
            style.backgroundColor, style.backgroundImage, style.fill, style.fontSize, style.fontWeight,
            style.textDecorationLine, [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim())];
        if ([style.overflowX, style.overflowY].includes('auto'))
            parts.push(each.scrollWidth > each.clientWidth, each.scrollHeight > each.clientHeight);
        for (const {name, value} of each.attributes)
            if (by_value.test(name)) parts.push(name, value);
            else parts.push(name, (by_text.test(name) ? texts_of(value) : value.trim()) !== '');
        if (each.id) parts.push(all.filter(other => other.id === each.id).length);
        if (is_landmark(each)) parts.push(landmarks.filter(name => name === each.localName + name_of(each)).length);
        for (const label of each.labels ?? []) parts.push(label.textContent.trim() !== '');
        if (/^h[1-6]$/.test(each.localName) && seen) {
            parts.push(level);
            level = each.localName;
        }
        if (is_box(each)) {
            const inside = each.localName === 'table' ? each.querySelectorAll('*') : each.children;
            parts.push(...new Set([...inside].map(child => child.localName).sort()));
        } else for (const child of each.children) parts.push(key_of(child));
        return hash(parts.join());
    };
    const added = [];
    window.axe_context = {include: [document.documentElement], exclude: []};
    const find = (each, around, is_included) => {
        const key = hash(around + key_of(each)), is_new = !known.has(key);
        if (is_new) {
            known.add(key);
            added.push(key);
        }
        if (is_new !== is_included) window.axe_context[is_new ? 'include' : 'exclude'].push(each);
        for (const child of each.children) find(child, key + '', is_new);
    };
    find(document.body, view, true);
    return added"""

_AXE: Final = """
    const [rules, done] = arguments;
    axe.run(window.axe_context, {resultTypes: ['violations'], preload: false, ...rules}).then(
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


SAME_EVERYWHERE: Final = ("documents", "login")
"""Blueprints of pages without data of the cluster."""
_ONLY_CONTRAST: Final = {"runOnly": ["color-contrast"]}


class Inspector:
    """Finds what is wrong with the page that is open. Parts that are equal in several pages are inspected once."""

    def __init__(self, axe: str, browser: Browser) -> None:
        self._axe = axe
        self._browser = browser
        self._known: list[int] = []

    def problems(self) -> list[str]:
        """In each width and colour scheme, with every fold open."""
        browser = self._browser
        browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
        found = self._cut("wide") + self._barriers("wide", {})
        browser.resize(390, 900)
        found += self._cut("narrow") + self._barriers("narrow", {})
        browser.prefer("dark")
        found += self._barriers("dark", _ONLY_CONTRAST)
        browser.prefer("light")
        browser.resize(1280, 900)
        return found

    def _cut(self, view: str) -> list[str]:
        return [f"{view}: {each}" for each in self._browser.run(_CUT)]

    def _barriers(self, view: str, rules: Mapping[str, object]) -> list[str]:
        added = self._browser.run(_FIND_PARTS, self._known, ",".join(rules))
        if not added:
            return []
        self._known += added
        if not self._browser.run("return 'axe' in window"):
            self._browser.run(self._axe)
        return [f"{view}: {each}" for each in self._browser.call_async(_AXE, rules)]


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


@pytest.fixture(scope="module")
def inspector(axe: str, chromium: Browser) -> Inspector:
    return Inspector(axe, chromium)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.__name__)
def test_every_page_is_accessible_and_nothing_is_cut_off(cluster, chromium, inspector, tmp_path):
    chromium.start_over()
    problems, asked = [], False
    with cluster(tmp_path) as site:
        chromium.open(site.url("/livez"))
        # A page that is replaced while it is inspected would be inspected in part.
        chromium.run("localStorage.setItem('nsqadmin.paused', '1')")
        if site.user:
            chromium.open(site.url("/"))
            problems += [f"before logging in: {problem}" for problem in inspector.problems()]
            site.log_in(chromium)
        for path in visit(chromium, site, without=() if cluster is showcase.widest else SAME_EVERYWHERE):
            problems += [f"{path} {problem}" for problem in inspector.problems()]
            if not asked and chromium.run("return document.querySelector('a[data-dialog][href]') !== null"):
                chromium.click("a[data-dialog][href]")
                chromium.find("dialog[open]")
                problems += [f"{path}, dialog: {problem}" for problem in inspector.problems()]
                asked = True
    assert not problems, "\n".join(problems)
