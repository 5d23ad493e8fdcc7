"""Tests of the package's structure: layers, cycles, folders, names, lengths; and nothing is ever unpickled."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import silvan

SOURCES = Path(silvan.__file__).parent

# a package may import from those before it
LAYERS = [
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
    "learners",
    "federate",
    "study",
    "report",
    "auditing",
    "deploy",
    "web",
    "cli",
    "__init__",
]
UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
MOST_LINES = 60

PATHS = sorted(SOURCES.rglob("*.py"))


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    """The dotted name of a module."""
    return ".".join(("silvan", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")


NAMES = {name_of(path): path for path in PATHS}


def imports(path):
    """Yields every import of a module, deferred and type-only ones included: the statement, and dotted names."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative path; write it out"
            yield node, [f"{node.module}.{alias.name}" for alias in node.names]


def module_in(dotted):
    """The module of a dotted name."""
    return dotted if dotted in NAMES else dotted.rpartition(".")[0]


def imported_modules(path):
    """Returns the modules of this package that a module imports."""
    found = (module_in(dotted) for _, names in imports(path) for dotted in names)
    return {name for name in found if name in NAMES and NAMES[name] != path}


def layer_of(path):
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


def test_imports_point_one_way():
    assert {layer_of(path) for path in PATHS} <= set(LAYERS), "say in LAYERS where a new package belongs"
    upward = [
        f"{name_of(path)} imports {name}"
        for path in PATHS
        if path != SOURCES / "__init__.py"
        for name in imported_modules(path)
        if name != "silvan" and LAYERS.index(layer_of(NAMES[name])) > LAYERS.index(layer_of(path))
    ]
    assert upward == []


def test_no_import_cycle():
    """Type-only and deferred imports count; an __init__ that imports its own modules is read as those."""
    graph = {name: imported_modules(path) for name, path in NAMES.items() if path.name != "__init__.py"}
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"a cycle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name in done or name not in graph:
            return
        open_.append(name)
        for other in sorted(graph[name]):
            visit(other)
        open_.pop()
        done.add(name)

    for name in graph:
        visit(name)


LAZY = (
    "silvan.learners.spec",
    "silvan.learners.fixed_fields",
    "silvan.forest.forest",
    "silvan.forest.predict",
    "silvan.tree.fit",
    "silvan.deploy.jobs.tiny_studies",
    "silvan.deploy.service.flare_client",
)
"""Modules that import, when it is first used, what many programs never need: learners, other formats, policies."""


def folder_imports():
    """The folders that each folder imports from, without the package's top folder, which all import."""
    graph = {}
    for path in PATHS:
        if path.parent == SOURCES or path.name == "__init__.py":
            continue
        targets = {NAMES[name].parent for name in imported_modules(path) if NAMES[name].name != "__init__.py"}
        graph.setdefault(path.parent, set()).update(targets - {path.parent, SOURCES})
    return graph


def test_no_cycle_between_folders():
    """At every level: a folder does not import what imports it, directly or indirectly."""
    graph, left = folder_imports(), set()
    while free := [folder for folder in graph if folder not in left and graph[folder] <= left]:
        left.update(free)
    assert sorted(str(folder.relative_to(SOURCES)) for folder in graph.keys() - left) == []


def test_a_folder_has_at_least_three_modules():
    sizes = Counter(path.parent for path in PATHS if path.name != "__init__.py")
    assert [str(folder.relative_to(SOURCES)) for folder, size in sizes.items() if size < 3] == []


def test_imports_stand_at_the_top():
    """Deferred imports of our own modules are for the command line, which must start at once."""
    deferred = [
        f"{name_of(path)} imports {names[0]} inside"
        for path in PATHS
        if layer_of(path) not in ("cli", "__init__") and name_of(path) not in LAZY
        for node, names in imports(path)
        if names[0].split(".")[0] == "silvan" and node not in parsed(path).body
    ]
    assert deferred == []


def test_private_names_are_not_imported():
    crossing = [
        f"{name_of(path)} imports {dotted}"
        for path in PATHS
        for _, names in imports(path)
        for dotted in names
        if dotted.split(".")[0] == "silvan" and dotted.rpartition(".")[2].startswith("_")
    ]
    assert crossing == []


def test_every_module_has_a_docstring():
    firsts = {name_of(path): (ast.get_docstring(parsed(path)) or "").split("\n")[0] for path in PATHS}
    assert [name for name, first in firsts.items() if not first.endswith(".")] == []


def test_file_names_are_unique():
    names = Counter(path.name for path in PATHS if path.name != "__init__.py")
    assert [name for name, n in names.items() if n > 1] == []


def functions():
    """Yields every function with its module's name, except compiled and code-generating ones."""
    for path in PATHS:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef):
                compiled = any("njit" in ast.unparse(d) for d in node.decorator_list)
                if not compiled and f"intrinsic({node.name})" not in path.read_text(encoding="utf-8"):
                    yield name_of(path), node


def length_of(function):
    """The number of lines of a function without its docstring, which may be long where users read it."""
    doc = ast.get_docstring(function, clean=False)
    return function.end_lineno - function.lineno + 1 - (len(doc.split("\n")) if doc else 0)


def test_functions_are_short():
    lengths = {f"{module}.{function.name}": length_of(function) for module, function in functions()}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


def test_docstrings_use_the_imperative():
    firsts = {f"{module}.{f.name}": (ast.get_docstring(f) or "").split(" ")[0] for module, f in functions()}
    assert [name for name, first in firsts.items() if first in ("Give", "Say", "Tell", "Have")] == []


def test_nothing_is_unpickled():
    used = {name.split(".")[0] for path in PATHS for _, names in imports(path) for name in names}
    assert not UNSAFE & used


def test_the_tests_above_can_fail():
    assert module_in("silvan.data.bins.bins.Bins") == "silvan.data.bins.bins"
    assert layer_of(SOURCES / "data" / "binning" / "bins.py") == "data"
    assert layer_of(SOURCES / "metrics.py") == "metrics"
    assert "silvan.data.schema" in imported_modules(SOURCES / "data" / "encode.py")
