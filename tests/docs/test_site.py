"""The documentation as a site: every link and heading exists (scripts/site fails otherwise), every name of the client
library has its text, and the search works without a server.
"""

import json
import re
import sys
from pathlib import Path

import pytest

import nsq_compat.client as nsq
from nsq_compat import __version__
from tests.nsqadmin.browser import Browser
from tests.packaging.release import ROOT, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "scripts/site", folder, cwd=ROOT)
    return folder


def test_the_site_opens_with_its_newest_version(site: Path):
    assert [each["version"] for each in json.loads((site / "versions.json").read_text())] == [__version__]
    assert f"url={__version__}/index.html" in (site / "index.html").read_text()


def test_the_api_of_the_client_library_has_all_names_in_both_forms(site: Path):
    page = (site / __version__ / "docs/api.html").read_text()
    for name in nsq.__all__:
        assert f'id="nsq_compat.client.{name}"' in page, name
    assert 'id="nsq_compat.client.aio.Consumer.run"' in page


def test_no_page_loads_anything_from_a_server(site: Path):
    loads = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//[^>]+>""")
    found = {tag for page in site.rglob("*.html") for tag in loads.findall(page.read_text())}
    assert found == set()


def test_the_search_finds_a_page_without_a_server(site: Path, tmp_path: Path):
    browser = Browser(tmp_path)
    try:
        browser.open((site / __version__ / "index.html").as_uri())
        browser.click(".md-search__input")
        browser.find(".md-search__input").type("tombstone")
        browser.sees("matching documents", ".md-search-result__meta")
    finally:
        browser.close()
