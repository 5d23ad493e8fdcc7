"""Imports point one way, the public names are in order, and nothing is ever unpickled."""

import ast
import inspect
from pathlib import Path

import pytest

import silvan

SOURCES = Path(silvan.__file__).parent

# a module may import from its own line and the lines above
LAYERS = [
    {"errors"},
    {"files", "metrics", "threads"},
    {"data"},
    {"tree"},
    {"federation"},
    {"privacy"},
    {"algorithms"},
    {"estimators", "federate", "federate_by_columns", "learners"},
    {"audit", "cli", "deploy", "report", "web"},
    {"__init__", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}

modules = pytest.mark.parametrize(
    "path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES))
)


def imports(path):
    """Yield the dotted name of everything a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative path; write it out"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(dotted):
    """Which part of silvan a dotted name belongs to; the package itself counts as its __init__."""
    names = dotted.split(".")
    return names[1] if len(names) > 1 and names[1] in LEVEL else "__init__"


@modules
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCES).parts[0].removesuffix(".py")
    assert part in LEVEL, f"say in LAYERS where {part!r} belongs"
    for dotted in imports(path):
        if dotted.split(".")[0] == "silvan":
            assert LEVEL[part_of(dotted)] <= LEVEL[part], f"{part} must not import {dotted}"


@modules
def test_nothing_is_unpickled(path):
    assert not UNSAFE.intersection(dotted.split(".")[0] for dotted in imports(path))


def test_the_layers_are_told_apart():
    """The test above, tested."""
    assert part_of("silvan.data.bins.Bins") == "data"
    assert part_of("silvan.metrics") == "metrics"
    assert part_of("silvan.Forest") == part_of("silvan") == "__init__"
    assert "silvan.data.schema.Schema" in set(imports(SOURCES / "tree" / "forest.py"))


def test_public_names():
    assert silvan.__all__ == sorted(silvan.__all__)
    for name in silvan.__all__:
        thing = getattr(silvan, name)
        assert inspect.isclass(thing) or callable(thing), name
        assert (vars(thing) if inspect.isclass(thing) else {"__doc__": thing.__doc__})["__doc__"], name
