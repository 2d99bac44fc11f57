import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.web.admin.tables import _PARAMETERS, ROWS_PER_PAGE, page_of, part_of

COLUMNS = {"name": lambda row: row[0], "size": lambda row: row[1]}
ROWS = [(f"n{number:03}", number % 7) for number in range(250)]


def page(**arguments):
    return page_of(ROWS, arguments, COLUMNS, lambda row: row[0])


def test_a_page_has_its_part_of_the_rows():
    assert page().rows == ROWS[:ROWS_PER_PAGE]
    assert page(page="3").rows == ROWS[200:]
    assert (page().found, page().count) == (250, 3)


@pytest.mark.parametrize(("number", "shown"), [("0", 1), ("99", 3), ("x", 1), ("-1", 1), ("9" * 50, 1), ("²", 1)])
def test_a_page_number_out_of_range_is_the_nearest_page(number, shown):
    assert page(page=number).number == shown


def test_a_part_has_its_own_parameter():
    part = part_of(ROWS, {"nodes": "2", "page": "3"}, "nodes")
    assert (part.rows, part.found, part.number, part.count) == (ROWS[100:200], 250, 2, 3)
    assert part_of([], {"nodes": "9"}, "nodes").rows == []


def test_equal_rows_are_sorted_by_name():
    rows = page(sort="size", desc="1").rows
    assert rows[0] == ("n006", 6)
    assert list(rows) == sorted(rows, key=lambda row: (-row[1], row[0]))


def test_a_second_click_on_a_column_header_reverses_the_order():
    assert page().sorted_by("size") == {"q": None, "sort": "size", "desc": 1, "page": None}
    assert page(sort="size", desc="1").sorted_by("size")["desc"] is None
    assert page(sort="size", desc="1").order("size") == "descending"
    assert page(sort="size").order("size") == "ascending"
    assert page().order("size") == "none"


@given(st.dictionaries(st.sampled_from(["q", "sort", "desc", "page"]), st.text(max_size=20)))
def test_any_arguments_give_a_page(arguments):
    shown = page_of(ROWS, arguments, COLUMNS, lambda row: row[0])
    assert 1 <= shown.number <= shown.count
    assert len(shown.rows) <= ROWS_PER_PAGE


@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders/mail", "/nodes/{node}", "/topics", "/nodes"])
def test_links_of_a_page_keep_any_parameters_also_those_that_its_path_has(browser, nsqd, path):
    answer = browser.get(path.format(node=nsqd.address), query_string=dict.fromkeys(_PARAMETERS, "x"))
    assert answer.status_code == 200
