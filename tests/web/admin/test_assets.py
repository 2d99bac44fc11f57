import nsq_compat
from nsq_compat.web.admin.assets import folder


def test_files_are_served_under_both_names(browser):
    for prefix in ("static", "fonts"):
        answer = browser.get(f"/{prefix}/nsqadmin.css")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/css; charset=utf-8"


def test_what_is_no_file_of_ours_is_not_found(browser):
    for name in ("nope", "..", ".hidden", "%2e%2e%2fsetup.cfg", "a%00b"):
        answer = browser.get(f"/static/{name}")
        assert answer.status_code == 404, name
    assert browser.get("/static/nope").text == "NOT_FOUND"


def test_a_folder_for_development_comes_first(browser, service, tmp_path):
    (tmp_path / "nsqadmin.css").write_text("body {}")
    service.options.dev_static_dir = str(tmp_path)
    assert browser.get("/static/nsqadmin.css").text == "body {}"
    assert browser.get("/static/favicon.svg").status_code == 404


def test_the_folders_are_found_from_a_checkout():
    assert (folder("templates") / "layout.html").is_file()
    assert folder("static").parent.name in ("nsq_compat", nsq_compat.__name__)


def test_ping(browser):
    answer = browser.get("/ping")
    assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, "OK", "text/plain; charset=utf-8")
