"""The documents: every one as a page, with links that lead to something."""

import re
from pathlib import Path

import pytest

from nsq_compat.web.admin.documents import to_html
from tests.web.admin.conftest import shown

DOCS = Path(__file__).parents[3] / "docs"
NAMES = sorted(path.stem for path in DOCS.glob("*.md"))


def test_the_footer_leads_to_the_documents(browser):
    links = re.findall(r'<footer>.*?href="([^"]+)".*?href="([^"]+)"', browser.get("/").text, flags=re.S)
    assert links == [("/docs/nsqadmin", "/docs")]
    assert "nsqadmin shows a cluster in the browser" in shown(browser.get("/docs/nsqadmin"))
    assert "Flags and config files" in shown(browser.get("/docs"))


@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_a_page_whose_links_lead_somewhere(browser, name):
    page = browser.get(f"/docs/{name}").text
    assert page.count("<h1") == 1
    text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.partition("<article")[2], flags=re.S)
    assert re.findall(r"`|\*\*|\]\(|^\||&lt;", re.sub(r"<[^>]+>", "", text), flags=re.M) == []
    for link in re.findall(r'href="(/docs[^"]*|#[^"]*)"', page.partition("<article")[2].partition("</article>")[0]):
        path, _, anchor = link.partition("#")
        target = browser.get(path).text if path else page
        assert target.count("<h1") == 1, link
        assert not anchor or f'id="{anchor}"' in target, link


def test_what_needs_files_that_are_not_served_is_left_out(browser):
    page = browser.get("/docs/nsqadmin").text
    assert "Screenshots" not in page
    assert "What needs attention" in page
    assert "<p></p>" not in page


@pytest.mark.parametrize("name", ["nothing", "..%2Fsetup", "%2e%2e", "nsqadmin.md", "a%00b"])
def test_other_names_are_not_found(browser, name):
    assert browser.get(f"/docs/{name}").status_code == 404


def test_documents_are_shown_before_the_login(behind_login):
    assert behind_login.get("/docs/nsqadmin").status_code == 200


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("# A *b* `c` & d", '<h1 id="a-b-c--d">A <em>b</em> <code>c</code> &amp; d</h1>'),
        ("one <b>", "<p>one </p>"),
        ("[b](c.md) [`x`](../README.md) ![i](i.webp)", '<p><a href="/c">b</a> <code>x</code> </p>'),
        ("<https://nsq.io/?a&b>", '<p><a href="https://nsq.io/?a&amp;b">https://nsq.io/?a&amp;b</a></p>'),
        ("```\na <b>\n```", '<pre tabindex="0"><code>a &lt;b&gt;\n</code></pre>'),
        ('<!-- no -->\n<a id="x"></a>', '<p><span id="x"></span></p>'),
    ],
)
def test_markdown_becomes_html(markdown, html):
    def address(target):
        return target if target.startswith("https:") else f"/{target[:-3]}" if "/" not in target else ""

    assert to_html(markdown, address) == html + "\n"


def test_a_table_scrolls_by_itself_also_with_the_keyboard():
    html = to_html("| a | b |\n|---|---|\n| `c\\|d` | e |", str)
    assert html.startswith('<div class="scroll" tabindex="0"><table>')
    assert "<td><code>c|d</code></td>" in html
