"""Draw the packages of mds and their imports as packages.svg: ``python docs/pictures/packages.py``.

The picture follows from `ALLOWED` in tests/test_structure.py. A package stands one row above the
highest package that it imports. An arrow is left out if a path of other arrows leads to the same
package. Long arrows bend around the boxes of the rows between.
"""

import importlib.util
import itertools
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
SVG = pathlib.Path(__file__).with_suffix(".svg")
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 900, 74, 88, 28  # pixels
BEND_WIDTH, GAP = 10, 12  # pixels: of an arrow between boxes, and between neighbours of a row
SWEEPS = 24  # of sorting and moving; later ones change nothing visible


def read_allowed_imports():
    """Return BASE and ALLOWED of tests/test_structure.py, each package with a set of packages."""
    path = ROOT / "tests" / "test_structure.py"
    spec = importlib.util.spec_from_file_location("test_structure", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    imports = {name: set(line.split()) for name, line in module.ALLOWED.items()}
    return sorted(module.BASE.split()), imports


def compute_levels(imports):
    """Return the row of every package, counted from below."""
    levels = {}

    def level_of(name):
        if name not in levels:
            levels[name] = 1 + max(map(level_of, imports[name]), default=-1)
        return levels[name]

    for name in imports:
        level_of(name)
    return levels


def select_arrows(imports):
    """Return the imports (importer, imported) that no path over other packages implies."""

    def reachable(name):
        return imports[name].union(*map(reachable, imports[name]))

    return [
        (importer, imported)
        for importer in sorted(imports)
        for imported in sorted(imports[importer])
        if not any(imported in reachable(other) for other in imports[importer] - {imported})
    ]


class Layout:
    """Rows of packages and bends, and the x position of the middle of each."""

    def __init__(self, imports):
        self.levels = compute_levels(imports)
        self.rows = [[] for _ in range(1 + max(self.levels.values()))]
        for name in sorted(imports):
            self.rows[self.levels[name]].append(name)
        self.paths = [self._path(*arrow) for arrow in select_arrows(imports)]
        self.neighbours = {node: [[], []] for row in self.rows for node in row}
        for path in self.paths:
            for upper, lower in itertools.pairwise(path):
                self.neighbours[upper][0].append(lower)
                self.neighbours[lower][1].append(upper)
        self.x = {}
        for row in self.rows:
            self._place(row, [WIDTH / 2] * len(row))
        for sweep in range(SWEEPS):
            upwards = sweep % 2 == 0
            for row in self.rows if upwards else self.rows[::-1]:
                self._sort(row, 0 if upwards else 1)
        for _ in range(SWEEPS):
            for row in self.rows:
                self._place(row, [self._mean(node, (0, 1)) for node in row])

    def _path(self, importer, imported):
        """Return the nodes of an arrow from above to below, one in every row."""
        path = [importer]
        for level in range(self.levels[importer] - 1, self.levels[imported], -1):
            bend = (importer, imported, level)
            self.rows[level].append(bend)
            path.append(bend)
        return [*path, imported]

    def _mean(self, node, sides):
        """Return the mean position of a node's neighbours in the rows below (0) and above (1)."""
        positions = [self.x[other] for side in sides for other in self.neighbours[node][side]]
        return sum(positions) / len(positions) if positions else self.x[node]

    def _sort(self, row, side):
        row.sort(key=lambda node: (round(self._mean(node, [side]), 3), str(node)))
        self._place(row, [self._mean(node, [side]) for node in row])

    def _place(self, row, wanted):
        """Move the nodes of a row near the wanted positions, in order and without an overlap.

        Neighbours that want the same place form a block around the mean of their wishes.
        """
        widths = [BOX_WIDTH if isinstance(node, str) else BEND_WIDTH for node in row]
        offsets = [0.0]
        for left, right in itertools.pairwise(widths):
            offsets.append(offsets[-1] + (left + right) / 2 + GAP)
        blocks = []  # (sum of shifts, number of nodes), shifts increasing
        for position, offset in zip(wanted, offsets, strict=True):
            blocks.append((position - offset, 1))
            while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
                total, count = blocks.pop()
                blocks[-1] = (blocks[-1][0] + total, blocks[-1][1] + count)
        shifts = [total / count for total, count in blocks for _ in range(count)]
        lowest, highest = widths[0] / 2 + GAP, WIDTH - GAP - widths[-1] / 2 - offsets[-1]
        for node, shift, offset in zip(row, shifts, offsets, strict=True):
            self.x[node] = min(max(shift, lowest), highest) + offset


def draw(base, imports):
    """Return the text of the SVG file."""
    layout = Layout(imports)
    count = len(layout.rows)
    height = count * ROW + BOX_HEIGHT + 2 * GAP

    def top_of(level):
        return GAP + (count - 1 - level) * ROW

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="13">'
        ),
        (
            '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#667"/></marker>'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for path in layout.paths:
        upper, lower = layout.levels[path[0]], layout.levels[path[-1]]
        points = [(layout.x[path[0]], top_of(upper) + BOX_HEIGHT)]
        for number, bend in enumerate(path[1:-1], start=1):
            points.append((layout.x[bend], top_of(upper - number) + BOX_HEIGHT / 2))
        points.append((layout.x[path[-1]], top_of(lower)))
        lines.append(draw_arrow(points))
    for name in sorted(imports):
        lines += draw_box(layout.x[name], top_of(layout.levels[name]), BOX_WIDTH, name, "#e8f0fb")
    lines += draw_box(
        WIDTH / 2,
        top_of(-1),
        WIDTH - 2 * GAP,
        f"every package may import {', '.join(base)}",
        "#f1f1ee",
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def draw_arrow(points):
    """Return a smooth arrow through points, vertical at both ends (a Catmull-Rom spline)."""
    slopes = [
        ((after[0] - before[0]) / 2, (after[1] - before[1]) / 2)
        for before, after in zip(points, points[2:], strict=False)
    ]
    slopes = [(0, points[1][1] - points[0][1]), *slopes, (0, points[-1][1] - points[-2][1])]
    command = f"M{points[0][0]:.0f},{points[0][1]:.0f}"
    for number, ((x, y), (next_x, next_y)) in enumerate(itertools.pairwise(points)):
        (dx, dy), (next_dx, next_dy) = slopes[number : number + 2]
        command += (
            f" C{x + dx / 3:.0f},{y + dy / 3:.0f}"
            f" {next_x - next_dx / 3:.0f},{next_y - next_dy / 3:.0f} {next_x:.0f},{next_y:.0f}"
        )
    return f'<path d="{command}" fill="none" stroke="#667" marker-end="url(#head)"/>'


def draw_box(middle, top, width, text, color):
    """Return the lines of a box with a text in it."""
    return [
        (
            f'<rect x="{middle - width / 2:.0f}" y="{top}" width="{width}" height="{BOX_HEIGHT}" '
            f'rx="4" fill="{color}" stroke="#345"/>'
        ),
        f'<text x="{middle:.0f}" y="{top + 18}" text-anchor="middle">{text}</text>',
    ]


if __name__ == "__main__":
    SVG.write_text(draw(*read_allowed_imports()), encoding="utf-8")
