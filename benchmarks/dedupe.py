"""The forgetting of a de-duplication filter of fixed size, measured and by formula.

``python -m benchmarks.dedupe`` writes the plot of docs/dedupe.md as SVG and prints the figures. Keys are numbers that
the filter hashes, so every run gives the same result.
"""

from pathlib import Path

from nsq_compat.client.dedupe import KeyState, SlotFilter, overwritten

_SLOTS = 20_000
_SAMPLE = 2_000
_AT = tuple(range(0, 100_001, 5_000))
_PLOT = Path(__file__).parent.parent / "docs" / "dedupe.svg"

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 320, 56, 44


def measured(later: int) -> float:
    """The average share of `_SAMPLE` keys that are forgotten after `later` further keys."""
    seen = SlotFilter(_SLOTS)
    sample = [b"sample %d" % number for number in range(_SAMPLE)]
    for key in sample:
        seen.claim(key)
        seen.keep(key)
    # Keys that the sample itself has evicted are not counted.
    kept = [key for key in sample if seen.claim(key) is KeyState.SEEN]
    seen = SlotFilter(_SLOTS)
    for key in kept:
        seen.claim(key)
        seen.keep(key)
    kept = [key for key in kept if seen.claim(key) is KeyState.SEEN]
    for number in range(later):
        seen.claim(b"later %d" % number)
    return sum(seen.claim(key) is not KeyState.SEEN for key in kept) / len(kept)


def _x(later: float) -> float:
    return _LEFT + later / _AT[-1] * (_WIDTH - _LEFT - 16)


def _y(share: float) -> float:
    return 16 + (1 - share) * (_HEIGHT - _BOTTOM - 16)


def plot(points: list[tuple[int, float]]) -> str:
    curve = " ".join(
        f"{_x(later):.1f},{_y(1 - overwritten(_SLOTS, later)):.1f}" for later in range(0, _AT[-1] + 1, 1000)
    )
    dots = "\n".join(f'<circle cx="{_x(later):.1f}" cy="{_y(1 - share):.1f}" r="4"/>' for later, share in points)
    grid = "\n".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    rows = "\n".join(
        f'<text x="{_LEFT - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    columns = "\n".join(
        f'<text x="{_x(turns * _SLOTS):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{turns}</text>'
        for turns in range(6)
    )
    middle = (_LEFT + _WIDTH - 16) / 2
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"
 font-size="12" fill="#333">
<title>Share of keys still known after so many later ones: formula and measurement</title>
<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>
<g stroke="#ddd">
{grid}
</g>
{rows}
{columns}
<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">later keys, in times the number of slots</text>
<polyline points="{curve}" fill="none" stroke="#2a6f97" stroke-width="2"/>
<g fill="#d1495b">
{dots}
</g>
<g transform="translate({_WIDTH - 230}, 34)">
<line x1="0" x2="24" y1="0" y2="0" stroke="#2a6f97" stroke-width="2"/>
<text x="32" y="4">formula: (1 - 1/N)^x</text>
<circle cx="12" cy="20" r="4" fill="#d1495b"/>
<text x="32" y="24">measured, N = {_SLOTS:,}</text>
</g>
</svg>
"""


def main() -> None:
    points = [(later, measured(later)) for later in _AT]
    for later, share in points:
        print(f"{later:>7} later keys: {share:6.1%} forgotten, {overwritten(_SLOTS, later):6.1%} computed")
    _PLOT.write_text(plot(points), encoding="ascii")


if __name__ == "__main__":
    main()
