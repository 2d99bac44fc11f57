"""Long tables, cut on the server: searched, sorted, and one page of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from flask import request, url_for

T = TypeVar("T")

ROWS_PER_PAGE: Final = 100
_OF_AN_ADDRESS: Final = ("q", "sort", "desc", "page", "nodes", "clients", "span", "limit")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    rows: Sequence[T]
    found: int
    """Rows on all pages."""
    number: int
    count: int
    search: str
    sort: str
    descending: bool

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """Of the address of this table, with these changes; what is at its default is left out."""
        values = {"q": self.search, "sort": self.sort, "desc": int(self.descending), "page": self.number, **changed}
        if values["page"] == 1:
            values["page"] = None
        return {name: value or None for name, value in values.items()}

    def sorted_by(self, column: str) -> dict[str, Any]:
        """The parameters behind a column's head: numbers begin with the largest, a second time turns the order."""
        descending = not self.descending if column == self.sort else column != "name"
        return self.parameters(sort=column, desc=int(descending), page=1)

    def order(self, column: str) -> str:
        """For aria-sort."""
        if column != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of a table that is not searched or sorted; `parameter` says which in the address."""

    rows: Sequence[T]
    found: int
    number: int
    count: int
    parameter: str


def part_of(rows: Sequence[T], arguments: Mapping[str, str], parameter: str) -> Part[T]:
    count, number, first = _place(len(rows), arguments.get(parameter, "1"))
    return Part(rows[first : first + ROWS_PER_PAGE], len(rows), number, count, parameter)


def address(**changed: Any) -> str:
    """Of the page that is shown, with other parameters; None leaves one out."""
    # Not whatever the visitor's address has: url_for understands some names itself.
    kept = {name: value for name in _OF_AN_ADDRESS if (value := request.args.get(name))}
    assert request.endpoint is not None, "there is no page without one"
    return url_for(request.endpoint, **(request.view_args or {}), **{**kept, **changed})


def page_of(
    rows: Sequence[T], arguments: Mapping[str, str], columns: Mapping[str, Callable[[T], Any]], name: Callable[[T], str]
) -> Page[T]:
    """`columns` are what one may sort by, "name" among them; whatever the arguments say, there is a page."""
    search = arguments.get("q", "").strip()[:100]
    sort = arguments.get("sort", "name")
    sort = sort if sort in columns else "name"
    descending = arguments.get("desc") == "1"
    found = [row for row in rows if search.lower() in name(row).lower()]
    found.sort(key=name)
    found.sort(key=columns[sort], reverse=descending)
    count, number, first = _place(len(found), arguments.get("page", "1"))
    return Page(found[first : first + ROWS_PER_PAGE], len(found), number, count, search, sort, descending)


def _place(rows: int, wanted: str) -> tuple[int, int, int]:
    """How many pages there are, which one it is, and its first row."""
    count = max(1, -(-rows // ROWS_PER_PAGE))
    number = min(max(1, _number(wanted)), count)
    return count, number, (number - 1) * ROWS_PER_PAGE


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
