"""Draw docs/figures/architecture.svg from the imports: `python docs/scripts/draw_architecture.py`.

A room is a package or a module directly below ``privfl`` or ``privfl.privacy``, or one of the packages ``attacks`` and
``audits``. A room stands right below the lowest room that uses it, so every import runs downwards. An arrow is
not drawn where it follows from others (a uses b and b uses c), nor to ``errors``, which all use.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "figures" / "architecture.svg"
PACKAGES = ("privfl", "attacks", "audits")
BELOW_ALL = "errors"
LEAST_WIDTH, BOX, HEIGHT, FLOOR, MARGIN = 1010, 178, 80, 118, 14
FILLS = {"privacy": "#dbe9f6", "attacks": "#fbe3cf", "audits": "#fbe3cf", "": "#f1f1ee"}
"""Background of a room by the first part of its name; the words say the same, so colour carries nothing alone."""

Uses = dict[str, set[str]]
"""For every room the rooms that it imports from."""


def path_of(room: str) -> Path:
    """The file that says what a room is for."""
    inside = ROOT / room if room in PACKAGES else ROOT / "privfl" / room
    return inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")


def room_of(module: str) -> str:
    """The room of a dotted name: ``privfl.data.files.x`` → ``data``; the empty string outside, and for front doors."""
    package, *rest = module.split(".")
    if package in PACKAGES[1:]:
        return package
    if package != "privfl" or not rest:
        return ""
    if rest[0] == "privacy":
        return f"privacy/{rest[1]}" if len(rest) > 1 else ""
    return rest[0]


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relations() -> Uses:
    """Which room imports from which, in the code of the day."""
    uses: Uses = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
            if room and not room.startswith("__"):
                uses.setdefault(room, set()).update(set(map(room_of, imported(path))) - {"", room})
    return {room: used & set(uses) for room, used in uses.items()}


def floors(uses: Uses) -> dict[str, int]:
    """The floor of every room; raises ``graphlib.CycleError``, which names the rooms, if some use each other."""
    users = {room: {user for user in uses if room in uses[user]} for room in uses}
    depth: dict[str, int] = {}
    for room in TopologicalSorter(users).static_order():
        depth[room] = 1 + max((depth[user] for user in users[room]), default=-1)
    return {room: max(depth.values()) - below for room, below in depth.items()}


def direct(uses: Uses) -> Uses:
    """The relations that do not follow from others."""
    reached: Uses = {}
    for room in TopologicalSorter(uses).static_order():
        reached[room] = uses[room].union(*(reached[other] for other in uses[room]))
    return {
        room: {other for other in used - {BELOW_ALL} if not any(other in reached[step] for step in used - {other})}
        for room, used in uses.items()
    }


def arrange(arrows: Uses, height: dict[str, int]) -> tuple[dict[str, float], list[list[str]], int]:
    """A horizontal centre for every room and for every place where an arrow passes a floor, the arrows as paths, and
    how wide the page is: as the fullest floor needs it.

    Each floor is ordered again and again by the mean place of its neighbours above and below, from the same start.
    """
    rows: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for room in sorted(height):
        rows[height[room]].append(room)
    paths = []
    for upper in sorted(arrows):
        for lower in sorted(arrows[upper]):
            passing = [f"{upper}>{lower}@{level}" for level in range(height[upper] - 1, height[lower], -1)]
            for level, point in zip(range(height[upper] - 1, height[lower], -1), passing, strict=True):
                rows[level].append(point)
            paths.append([upper, *passing, lower])
    beside: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for path in paths:
        for first, second in pairwise(path):
            beside[first].append(second)
            beside[second].append(first)
    width = max(LEAST_WIDTH, *(math.ceil(2 * (MARGIN + sum(map(_half, row)))) for row in rows))
    centre = {name: place for row in rows for name, place in _spread(row, width).items()}
    for sweep in range(40):
        for row in rows if sweep % 2 else reversed(rows):
            wish = {n: sum(centre[b] for b in beside[n]) / max(len(beside[n]), 1) or width / 2 for n in row}
            row.sort(key=lambda name: (wish[name], name))
            centre |= _spread(row, width, wish)
    return centre, paths, width


def _half(name: str) -> float:
    """Half of what a room, or an arrow that passes a floor, takes there."""
    return 6.0 if "@" in name else BOX / 2 + 5


def _spread(row: list[str], width: int, wish: dict[str, float] | None = None) -> dict[str, float]:
    """Centres from left to right without overlap, near their wishes: the mean of filling up from either side."""
    halves = [_half(name) for name in row]
    wishes = [wish[name] for name in row] if wish else [width / 2] * len(row)
    rightwards = _pushed(wishes, halves, width)
    leftwards = [width - place for place in _pushed([width - w for w in wishes[::-1]], halves[::-1], width)][::-1]
    return {n: (a + b) / 2 for n, a, b in zip(row, rightwards, leftwards, strict=True)}


def _pushed(wishes: list[float], halves: list[float], width: int) -> list[float]:
    """Places at or right of the wishes, each clear of the one before; pushed back where they would leave the page."""
    places, edge = [], float(MARGIN)
    for wish, half in zip(wishes, halves, strict=True):
        places.append(max(edge + half, wish))
        edge = places[-1] + half
    edge = float(width - MARGIN)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], edge - halves[index])
        edge = places[index] - halves[index]
    return places


def draw(uses: Uses) -> str:
    """The picture as SVG: boxes with what each room says of itself, and arrows from a room to what it imports."""
    height = floors(uses)
    centre, paths, width = arrange(direct(uses), height)
    top = max(height.values())
    size = (top + 1) * FLOOR + 2 * MARGIN
    level = height | {name: int(name.split("@")[1]) for name in centre if "@" in name}

    def y(name: str) -> float:
        return MARGIN + (top - level[name]) * FLOOR

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {size}" width="{width}" height="{size}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
        "<title>The rooms of privfl; every arrow points from a room to one that it imports</title>",
        f'<rect width="{width}" height="{size}" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
    ]
    for path in paths:
        points = [(centre[path[0]], y(path[0]) + HEIGHT)]
        for name in path[1:-1]:
            points += [(centre[name], y(name)), (centre[name], y(name) + HEIGHT)]
        points.append((centre[path[-1]], y(path[-1])))
        parts.append(
            f'<path d="{_curve(points)}" fill="none" stroke="#555" stroke-width="1.2" marker-end="url(#tip)"/>'
        )
    for room in sorted(height):
        parts += _box(room, centre[room], y(room))
    return "\n".join([*parts, "</svg>", ""])


def _curve(points: Iterable[tuple[float, float]]) -> str:
    (x, y), *others = points
    text = f"M{x:.0f},{y:.0f}"
    for right, down in others:
        middle = (y + down) / 2
        text += f" C{x:.0f},{middle:.0f} {right:.0f},{middle:.0f} {right:.0f},{down:.0f}"
        x, y = right, down
    return text


def _box(room: str, centre: float, top: float) -> list[str]:
    left = centre - BOX / 2
    fill = FILLS.get(room.split("/")[0], FILLS[""])
    says = (ast.get_docstring(ast.parse(path_of(room).read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    lines = wrap(" ".join(says.replace("``", "").split()), 27, max_lines=4, placeholder=" …")
    return [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX}" height="{HEIGHT}" rx="5" fill="{fill}" stroke="#333"/>',
        f'<text x="{left + 8:.0f}" y="{top + 16:.0f}" font-size="13" font-weight="bold">{escape(room)}</text>',
        *(
            f'<text x="{left + 8:.0f}" y="{top + 31 + 13 * number:.0f}" font-size="11">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ),
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(relations()), encoding="utf-8")
