"""Draw concepts.svg, cache.svg and resume.svg: ``python docs/pictures/diagrams.py``.

Samples and their ranks come from `EpochPlan`. The colors follow the color scheme of the page.
"""

import pathlib

from mds.plan import EpochPlan
from mds.world import World

HERE = pathlib.Path(__file__).parent
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.left { text-anchor: start }
.right { text-anchor: end }
.title { font-weight: 600 }
.line { fill: none; stroke: #59636e; stroke-width: 1.3 }
.box { fill: #f3f5f7; stroke: #8c959f }
.node0 { fill: #8ec5ff }
.node1 { fill: #ffc078 }
.node2 { fill: #8ce99a }
.node3 { fill: #f0a6ca }
.on-color { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
  text { fill: #d5dae0 }
  .line { stroke: #9aa4ae }
  .box { fill: #24292f; stroke: #6e7781 }
  .on-color { fill: #1f2328 }
}
""".strip()
SHARDS = [8] * 8  # samples of each shard
NODES = 4  # canonical nodes
GLOBAL_BATCH = 8


class Drawing:
    """The elements of an SVG file."""

    def __init__(self, width, height, title):
        self.lines = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img">'
            ),
            f"<title>{title}</title>",
            f"<style>\n{STYLE}\n</style>",
            (
                '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto-start-reverse">'
                '<path class="line" d="M1,1 L7,4 L1,7"/></marker>'
            ),
        ]

    def text(self, x, y, text, kind=""):
        """Write a text; ``kind`` has classes of STYLE."""
        label = f' class="{kind}"' if kind else ""
        self.lines.append(f'<text{label} x="{x:g}" y="{y:g}">{text}</text>')

    def box(self, x, y, width, height, text="", kind="box"):
        """Draw a box; the lines of a text are centered in it."""
        self.lines.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="4"/>'
        )
        rows = text.split("\n") if text else []
        top = y + height / 2 + 4.5 - 8 * (len(rows) - 1)
        for number, row in enumerate(rows):
            self.text(x + width / 2, top + 16 * number, row, "" if kind == "box" else "on-color")

    def line(self, path, *, arrow=False):
        """Draw a path of SVG, with an arrow's head at its end."""
        head = ' marker-end="url(#head)"' if arrow else ""
        self.lines.append(f'<path class="line" d="{path}"{head}/>')

    def __str__(self):
        """Return the text of the file."""
        return "\n".join([*self.lines, "</svg>"]) + "\n"


def make_plan(nodes, ranks_per_node):
    """Return the plan of an epoch of 64 samples, with the same global batch on any world."""
    world = World(nodes, ranks_per_node, 2, 0)
    return EpochPlan(
        [{"shards": SHARDS}],
        world,
        batch_size=GLOBAL_BATCH // (nodes * ranks_per_node),
        num_canonical_nodes=NODES,
        shuffle=True,
        shuffle_algo="py1s",
        shuffle_seed=1,
    )


def find_canonical_nodes():
    """Return the canonical node of every sample."""
    plan = make_plan(NODES, 1)  # on as many machines, machine i reads canonical node i
    return {
        int(sample): node
        for step in range(plan.steps)
        for node, samples in enumerate(plan.batch(step))
        for sample in samples
    }


def find_machine(plan, node_of, node):
    """Return the machine (of two) that reads a canonical node in the first step."""
    ranks = plan.batch(0)
    return next(
        rank * 2 // len(ranks)
        for rank, samples in enumerate(ranks)
        if node in {node_of[int(sample)] for sample in samples}
    )


def draw_concepts():
    """Draw shards, canonical nodes, machines, ranks and workers below each other."""
    node_of = find_canonical_nodes()
    plan = make_plan(2, 2)
    drawing = Drawing(760, 400, "From shards to the batches of workers")
    left, width = 142, 610
    for y, label in ((32, "shards"), (92, "canonical nodes"), (150, "machines"), (200, "ranks")):
        drawing.text(left - 14, y + 5, label, "title right")
    for y, label in ((262, "worker 0"), (294, "worker 1"), (326, "worker 0"), (358, "worker 1")):
        drawing.text(left - 14, y + 5, label, "title right")
    nodes = sorted(range(NODES), key=lambda node: find_machine(plan, node_of, node))
    shards = sorted(range(len(SHARDS)), key=lambda shard: nodes.index(node_of[shard * SHARDS[0]]))
    step = width / len(SHARDS)
    for place, shard in enumerate(shards):
        node = node_of[shard * SHARDS[0]]
        drawing.box(left + place * step + 4, 18, step - 8, 28, f"shard {shard}", f"node{node}")
    step = width / NODES
    for place, node in enumerate(nodes):
        middle = left + (place + 0.5) * step
        drawing.line(f"M{middle - step / 4:g},46 L{middle - 12:g},77", arrow=True)
        drawing.line(f"M{middle + step / 4:g},46 L{middle + 12:g},77", arrow=True)
        text = f"canonical node {node}"
        drawing.box(left + place * step + 4, 78, step - 8, 28, text, f"node{node}")
        drawing.line(f"M{middle:g},106 V134", arrow=True)
    step = width / 2
    for machine in range(2):
        drawing.box(left + machine * step + 4, 135, step - 8, 250)
        drawing.text(left + (machine + 0.5) * step, 155, f"machine {machine}")
    step = width / 4
    for rank in range(4):
        middle = left + (rank + 0.5) * step
        drawing.text(middle, 205, f"rank {rank}")
        for number in range(4):
            y = 248 + 32 * number
            drawing.text(middle - 44, y + 19, f"step {number}")
            for place, sample in enumerate(plan.batch(number)[rank]):
                x = middle - 14 + 32 * place
                drawing.box(x, y, 30, 28, str(int(sample)), f"node{node_of[int(sample)]}")
        drawing.text(middle, 236, "batches of samples")
    return str(drawing)


def draw_cache():
    """Draw the states of a shard, and what moves it from one to the next."""
    drawing = Drawing(760, 250, "The life of a shard in the cache")
    boxes = [
        (10, "on the remote"),
        (210, "downloading,\ntemporary name"),
        (410, "in the cache"),
        (610, "in use"),
    ]
    for x, text in boxes:
        drawing.box(x, 90, 140, 54, text)
    for x, rows in (
        (180, ("a worker needs", "it soon")),
        (380, ("size and digest", "are right")),
        (580, ("a worker", "reads samples")),
    ):
        drawing.line(f"M{x - 28},117 H{x + 27}", arrow=True)
        drawing.text(x, 60, rows[0])
        drawing.text(x, 76, rows[1])
    drawing.line("M680,144 V180 H500 V147", arrow=True)
    drawing.text(590, 198, "no worker reads it")
    drawing.line("M460,144 V222 H60 V147", arrow=True)
    drawing.text(260, 214, "evicted: the other shards are needed earlier")
    drawing.line("M300,144 V166 H100 V147", arrow=True)
    drawing.text(200, 184, "damaged twice: error")
    drawing.line("M250,90 V40 H310 V87", arrow=True)
    drawing.text(280, 30, "damaged once: download again")
    return str(drawing)


def draw_resume():
    """Draw the global batches of a run before and after it resumes on other ranks."""
    node_of = find_canonical_nodes()
    stop = 3
    drawing = Drawing(760, 356, "A run on four ranks that resumes on two")
    worlds = [(make_plan(2, 2), range(stop), 106), (make_plan(1, 2), range(stop, 6), 460)]
    drawing.text(220, 24, "2 machines with 2 ranks", "title")
    drawing.text(572, 24, "1 machine with 2 ranks", "title")
    for plan, steps, left in worlds:
        ranks = len(plan.batch(0))
        size = GLOBAL_BATCH // ranks
        for rank in range(ranks):
            top = 58 + rank * size * 32
            drawing.box(left - 62, top + 1, 62 + 3 * 90, size * 32 - 4)
            drawing.text(left - 56, top + size * 16 + 3, f"rank {rank}", "left")
        for column, step in enumerate(steps):
            middle = left + 45 + 90 * column
            drawing.text(middle, 48, f"step {step}")
            for place, sample in enumerate(plan.batch(step).reshape(-1)):
                kind = f"node{node_of[int(sample)]}"
                drawing.box(middle - 30, 62 + 32 * place, 60, 24, str(int(sample)), kind)
    drawing.line("M387,34 V316")
    drawing.text(387, 334, "the state is saved here, and loaded on the new ranks")
    drawing.text(387, 351, "each number is a sample; each color is a canonical node")
    return str(drawing)


def draw_all():
    """Return the text of each picture by its file name."""
    return {
        "concepts.svg": draw_concepts(),
        "cache.svg": draw_cache(),
        "resume.svg": draw_resume(),
    }


if __name__ == "__main__":
    for name, picture in draw_all().items():
        (HERE / name).write_text(picture, encoding="utf-8")
