"""Draw the figures of the documents: boxes and arrows, written as SVG to docs/images/."""

from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent.parent / "docs" / "images"

SITE, COORDINATOR, RESULT, QUESTION = "#e3f1e5", "#e4ecf7", "#fdf1d6", "#f3f3f3"


class Box(NamedTuple):
    """A box with lines of text, positioned by the middle of its upper edge."""

    x: int
    y: int
    text: str
    fill: str = SITE
    width: int = 150

    @property
    def height(self) -> int:
        """The height of the box, by its lines."""
        return 16 + 16 * len(self.text.split("\n"))


class Arrow(NamedTuple):
    """An arrow between two points, with a label."""

    x1: int
    y1: int
    x2: int
    y2: int
    text: str = ""


def draw(name: str, title: str, width: int, height: int, parts: list[Box | Arrow]) -> None:
    """Write one figure."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for part in parts:
        lines += _box(part) if isinstance(part, Box) else _arrow(part)
    (IMAGES / f"{name}.svg").write_text("\n".join([*lines, "</svg>"]) + "\n", encoding="utf-8")


def _box(box: Box) -> list[str]:
    left = box.x - box.width // 2
    shape = f'<rect x="{left}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" fill="{box.fill}" '
    texts = [
        f'<text x="{box.x}" y="{box.y + 20 + 16 * i}" text-anchor="middle" fill="#222">{escape(line)}</text>'
        for i, line in enumerate(box.text.split("\n"))
    ]
    return [shape + 'stroke="#888"/>', *texts]


def _arrow(arrow: Arrow) -> list[str]:
    x1, y1, x2, y2, text = arrow
    found = [f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" marker-end="url(#end)"/>']
    flat = y1 == y2  # a label is above a flat arrow, and beside any other
    for i, line in enumerate(text.split("\n") if text else []):
        x, y = (x1 + x2) // 2 + (0 if flat else 8), (y1 + y2) // 2 + (-6 if flat else 14 * i)
        anchor = ' text-anchor="middle"' if flat else ""
        found.append(f'<text x="{x}" y="{y}"{anchor} fill="#444" font-size="12">{escape(line)}</text>')
    return found


def three_sites(at_site: str, travels: str, at_coordinator: str, result: str) -> list[Box | Arrow]:
    """Return three sites, what travels from them to the coordinator, and the result."""
    parts: list[Box | Arrow] = []
    for name, x in (("north", 105), ("east", 300), ("south", 495)):
        parts += [Box(x, 20, f"{name}\n{at_site}", SITE, 170), Arrow(x, 86, 300 + (x - 300) // 3, 138)]
    parts += [Arrow(300, 86, 300, 138, travels), Box(300, 140, f"coordinator\n{at_coordinator}", COORDINATOR, 320)]
    return [*parts, Arrow(300, 190, 300, 228), Box(300, 230, result, RESULT, 420)]


MODELS = (
    "the shared model,\nor one of its own",
    "the gain of joining,\nwith an interval",
    "a ledger of all\nthat left",
)


def main() -> None:
    """Draw all figures."""
    IMAGES.mkdir(exist_ok=True)
    rows = "grows trees on\nits own rows"
    figures = {
        "histogram": (
            "Sites count, the coordinator splits",
            (
                "counts of its rows\nby bin and class",
                "sums",
                "chooses the best split of every node",
                "the pooled forest, a level a round",
            ),
        ),
        "merge": (
            "Sites' own trees put together",
            (rows, "trees, signed", "puts them together", "one forest; the other sites re-estimate its leaves"),
        ),
        "bofrf": (
            "Trees are scored at all sites and weighed",
            (
                "scores all trees\non its rows",
                "matrices, summed",
                "weighs trees by their correlation",
                "each site takes all weighted trees, or its own",
            ),
        ),
        "clustered": (
            "Sites that are alike learn together",
            (
                "means and shares\nof its columns",
                "vectors",
                "finds clusters, farthest first",
                "each cluster learns by itself",
            ),
        ),
        "boosting": (
            "Boosted stumps across sites",
            (
                "boosts stumps on\nits own rows",
                "stumps, signed",
                "puts their votes together",
                "one vote for all, or one for each site (BOPPID)",
            ),
        ),
        "private": (
            "Counts with noise",
            (
                "counts, and noise,\ncharged to a budget",
                "sums",
                "sees noisy sums alone",
                "a forest, and an account of what it may tell",
            ),
        ),
    }
    for name, (title, texts) in figures.items():
        draw(name, title, 600, 290, three_sites(*texts))
    draw(
        "vertical",
        "Columns stay with their parties",
        600,
        360,
        [
            Box(300, 20, "coordinator\ndraws columns for every open node", COORDINATOR, 280),
            Box(110, 150, "bank: its columns, the label\nbest split, and what it is worth", SITE, 200),
            Box(490, 150, "shop: its columns\nbest split, and what it is worth", SITE, 200),
            Arrow(150, 148, 250, 70, "gains"),
            Arrow(450, 148, 350, 70, "gains"),
            Box(
                300, 240, "the winner tells which rows go left, and keeps\ncolumn and threshold to itself", RESULT, 320
            ),
            Arrow(110, 200, 220, 238),
            Arrow(490, 200, 380, 238),
            Box(300, 310, "the forest of the joined table, in shares", QUESTION, 320),
            Arrow(300, 288, 300, 308),
        ],
    )
    sites = (("Hospital A", 105), ("Hospital B", 300), ("Hospital C", 495))
    draw(
        "overview",
        "Rows stay at the sites; counts, sums and trees travel",
        600,
        330,
        [
            *(Box(x, 20, f"{name}\nrows, policy,\nbudget, ledger", SITE, 150) for name, x in sites),
            *(Arrow(x, 86, 300 + (x - 300) // 3, 148) for _, x in sites),
            Arrow(300, 86, 300, 148, "counts, sums, trees"),
            Box(
                300,
                150,
                "coordinator: chooses splits, weighs trees\nsees no row; of masked sums only the total",
                COORDINATOR,
                340,
            ),
            *(Arrow(300 + (x - 300) // 3, 200, x, 258) for _, x in sites),
            *(Box(x, 260, text, RESULT, 180) for (_, x), text in zip(sites, MODELS, strict=True)),
        ],
    )
    draw(
        "linear",
        "Each party keeps its coefficients",
        600,
        300,
        [
            Box(110, 30, "bank: label, its columns", SITE, 190),
            Box(490, 30, "shop: its columns", SITE, 190),
            Arrow(205, 46, 393, 46, "residuals, sealed"),
            Arrow(393, 66, 207, 66),
            Box(300, 130, "sums of products of columns, by ridge regression", COORDINATOR, 380),
            Arrow(110, 64, 220, 128),
            Arrow(490, 64, 380, 128),
            Box(300, 220, "coefficients of each party, at that party", RESULT, 380),
            Arrow(300, 164, 300, 218),
        ],
    )
    draw(
        "choosing",
        "Which learner for which data",
        720,
        470,
        [
            Box(360, 16, "Who holds what?", QUESTION, 180),
            Box(180, 100, "different people,\nthe same columns", SITE, 170),
            Box(560, 100, "the same people,\nother columns", SITE, 170),
            Arrow(320, 50, 200, 98),
            Arrow(400, 50, 540, 98),
            Box(180, 200, "A promise about single persons?", QUESTION, 250),
            Arrow(180, 150, 180, 198),
            Box(560, 200, "VerticalForest\n(VerticalLinear beside it)", RESULT, 190),
            Arrow(560, 150, 560, 198),
            Box(400, 290, "HistogramForest(epsilon=)", RESULT, 190),
            Arrow(270, 234, 360, 288, "yes"),
            Box(140, 290, "One forest for all, or one\nfor each site?", QUESTION, 220),
            Arrow(160, 234, 150, 288, "no"),
            Box(105, 400, "HistogramForest (exact)\nMergedForest (one round)", RESULT, 180),
            Arrow(110, 340, 90, 398, "for all"),
            Box(320, 400, "AutoForest\nBOFRF(personal=True, clusters=)", RESULT, 220),
            Arrow(190, 340, 290, 398, "for each"),
        ],
    )


if __name__ == "__main__":
    main()
