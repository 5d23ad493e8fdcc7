"""Write the list of modules in docs/architecture.md from the docstrings of packages and modules.

The page is written by hand except for the part between two markers. ``make docs`` runs this, and a test fails when
the page differs from the result.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "silvan"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: written by tools/write_architecture.py -->\n", "<!-- end of modules -->\n"

# in the order of imports: each only from those before it
LAYERS = (
    *(
        "errors",
        "util",
        "metrics",
        "survival_metrics",
        "data",
        "datasets",
        "forest",
        "tree",
        "federation",
        "privacy",
        "algorithms",
    ),
    *("learners", "federate", "study", "report", "auditing", "deploy", "web", "cli"),
)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not doc:
        raise SystemExit(f"{path.relative_to(ROOT)} says nothing about itself")
    return doc.split("\n")[0]


def folders_of(layer: str) -> list[Path]:
    """List a package and the packages in it; nothing for a module."""
    top = SOURCES / layer
    return [top, *sorted(p for p in top.rglob("*") if (p / "__init__.py").exists())] if top.is_dir() else []


def modules() -> str:
    """Return the list of all packages and modules, in the order of the layers."""
    lines = []
    for layer in LAYERS:
        alone = SOURCES / f"{layer}.py"
        if alone.exists():
            lines += [f"### `{layer}.py`", "", first_line(alone), ""]
        for folder in folders_of(layer):
            lines += [f"### `{folder.relative_to(SOURCES)}/`", "", first_line(folder / "__init__.py"), ""]
            own = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            lines += [f"- `{path.name}`: {first_line(path)}" for path in own] + ([""] if own else [])
    return "\n".join(lines)


def placed() -> set[Path]:
    """Return all modules that have a place in the list."""
    alone = {SOURCES / f"{layer}.py" for layer in LAYERS}
    return {path for layer in LAYERS for folder in folders_of(layer) for path in folder.glob("*.py")} | alone


def render(page: str) -> str:
    """Return the page with the current list of modules."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE.name} lacks the lines between which modules are listed")
    return f"{before}{BEGIN}\n{modules()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
