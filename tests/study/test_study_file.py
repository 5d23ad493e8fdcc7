"""The study file: keys are read, mistakes are reported with their line, and everything is documented."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import silvan as sv
from silvan.learners.parameters import defaults, descriptions
from silvan.learners.registry import LEARNERS
from silvan.study.sections import EvaluationSettings
from silvan.study.study import Study
from silvan.study.study_file import fingerprint_of, make_learner, read_study, with_lines
from silvan.study.toml_lines import key_lines, suggest
from silvan.util.declared import typed_keys

PARTIES = ("tables/bank.csv", "tables/shop.parquet")
PAGE = Path(__file__).parents[2] / "docs" / "study.md"


def written(folder, text):
    (folder / "a.csv").write_text("x,label\n1,no\n2,yes\n")
    path = folder / "s.toml"
    path.write_text(text)
    return path


def test_the_documented_example_is_read(tmp_path):
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    for name in ("tables/cleveland.csv", "tables/long_beach.csv.gz", "tables/zurich.parquet", "heart.csv", *PARTIES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for text in examples:
        study = read_study(written(tmp_path, text))
    study = read_study(written(tmp_path, examples[0]))
    assert list(study.tables) == ["Cleveland", "Long Beach", "Zurich"]
    assert study.run_folder == tmp_path / "runs" / "heart"
    assert (study.group, study.exclude) == ("patient", ("visit",))
    assert study.policy == sv.Policy(min_leaf=5, min_sites=3)
    schema = sv.Schema.of(["x"], sv.Label("disease", ("no", "yes")))
    learner = make_learner(study, schema)
    assert learner.n_estimators == 200
    assert learner.class_weight == {"no": 1.0, "yes": 2.0}


def reference():
    """The script that writes the tables of keys."""
    script = PAGE.parents[1] / "tools" / "write_study_reference.py"
    spec = importlib.util.spec_from_file_location("write_study_reference", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_key():
    tool = reference()
    for page in tool.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tool.render(text) == text, "run tools/write_study_reference.py"
    text = PAGE.read_text()
    keys = {*typed_keys(Study), *typed_keys(EvaluationSettings), *typed_keys(sv.Policy)} - {"predict"}
    for spec in LEARNERS.values():
        keys |= {spec.name, *typed_keys(spec.parameters)}
    assert {key for key in keys if not any(f"`{key}`" in text for key in (key, f'"{key}"', f"[{key}]"))} == set()


def test_a_key_is_declared_in_one_place():
    """One declaration has its type, range, default and documentation, and a new key needs no other file."""
    for field in msgspec.structs.fields(Study):
        assert (field.name in typed_keys(Study)) == (field.name not in ("path", "text", "lines", "tables"))
    for key in ("exclude", "approval_days"):
        source = Path(sv.__file__).parent / "study"
        assert [path.name for path in source.glob("*.py") if f"    {key}: " in path.read_text()] == ["study.py"]


@pytest.mark.parametrize("spec", LEARNERS.values(), ids=lambda spec: spec.name)
def test_parameters_are_those_of_the_learner(spec):
    signature = {name: one.default for name, one in inspect.signature(spec.load()).parameters.items()}
    assert signature == defaults(spec.parameters)
    assert set(descriptions(spec.parameters)) == set(signature)
    # every default can be written in a study file; None is written "none"
    for name, hint in typed_keys(spec.parameters).items():
        assert msgspec.convert(signature[name], hint) == signature[name]


def test_parameters_are_known_without_any_algorithm():
    code = "import sys, silvan.learners.registry; print([m for m in sys.modules if m.startswith('silvan.algorithms')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_defaults(tmp_path):
    study = read_study(written(tmp_path, '[sites]\na = "a.csv"\n'))
    assert (study.name, study.label, study.test, study.kind) == ("s", "label", 0.0, "HistogramForest")
    assert study.run_folder == tmp_path / "runs" / "s"
    schema = sv.Schema.of(["x"], sv.Label("label", (0, 1)))
    assert make_learner(study, schema).get_params() == sv.HistogramForest().get_params()


def test_none_and_the_study_random_state(tmp_path):
    text = 'random_state = 7\n[sites]\na = "a.csv"\n[learner]\nmax_depth = "none"\nclass_weight = { 0 = 2 }\n'
    study = read_study(written(tmp_path, text))
    learner = make_learner(study, sv.Schema.of(["x"], sv.Label("label", (0, 1))))
    assert learner.max_depth is None
    assert learner.random_state == 7
    assert learner.class_weight == {0: 2}


WRONG = [
    ('labl = "x"\n[sites]\na = "a.csv"', "s.toml:1: unknown key 'labl'; did you mean 'label'?"),
    ('[sites]\na = "none.csv"', "s.toml:2: site 'a': 'none.csv' does not exist (looked for /"),
    ('[sites]\na = "."', "s.toml:2: site 'a': '.' is a folder"),
    ('[sites]\na = "s.toml"', "s.toml:2: site 'a': 's.toml' should end in .csv"),
    ("[sites]\na = 3", "s.toml:2: site 'a': must be the path of a table, got 3"),
    ("[sites]", "s.toml:1: [sites] must name at least one site"),
    ("sites = 3", "s.toml:1: [sites] must name at least one site"),
    ('label = "x"', "name the sites"),
    ('table = "a.csv"', "s.toml:1: name the sites"),
    ('site = "x"\n[sites]\na = "a.csv"', "s.toml:1: site is for one table"),
    ('[sites]\nall = "a.csv"', "s.toml:2: a site cannot be called 'all'"),
    ('[sites]\n"a\\nb" = "a.csv"', "s.toml:2: a site cannot be called 'a\\nb'"),
    ('[sites]\na = "a.csv"\ntest = "0.2"', "put it before the first [section]"),
    ('test = 1.0\n[sites]\na = "a.csv"', "s.toml:1: test must be a number of at least 0 and below 1, got 1.0"),
    ('test = true\n[sites]\na = "a.csv"', "s.toml:1: test must be"),
    (
        'task = "guess"\n[sites]\na = "a.csv"',
        "s.toml:1: task must be 'classification', 'regression' or 'survival'",
    ),
    ('random_state = -1\n[sites]\na = "a.csv"', "s.toml:1: random_state must be a whole number of at least 0"),
    ('sums = "secret"\n[sites]\na = "a.csv"', "s.toml:1: sums must be 'masked', 'ring' or 'trusted', got 'secret'"),
    ('exclude = "x"\n[sites]\na = "a.csv"', "s.toml:1: exclude must be a list of texts"),
    ('[sites]\na = "a.csv"\n[lerner]\nx = 1', "s.toml:3: unknown section [lerner]; did you mean 'learner'?"),
    ('[sites]\na = "a.csv"\n[learner]\nkind = "Histogramforest"', "s.toml:4: there is no learner"),
    ('[sites]\na = "a.csv"\n[learner]\n\nn_estimator = 3', "s.toml:5: unknown key 'n_estimator' in [learner]"),
    ('[sites]\na = "a.csv"\n[learner]\nkind = "LocalForest"\nbins = "shared"', "s.toml:5: unknown key 'bins'"),
    (
        '[sites]\na = "a.csv"\n[learner]\nn_estimators = "many"',
        "n_estimators must be a whole number of at least 1, got 'many'",
    ),
    (
        '[sites]\na = "a.csv"\n[learner]\nn_estimators = 0',
        "s.toml:4: n_estimators must be a whole number of at least 1",
    ),
    (
        '[sites]\na = "a.csv"\n[learner]\nmax_features = 1.5',
        "s.toml:4: max_features must be 'log2', 'sqrt', a whole number of at least 1, a number above 0",
    ),
    ('[sites]\na = "a.csv"\n[learner]\nbootstrap = "yes"', "s.toml:4: bootstrap must be true or false"),
    ('[sites]\na = "a.csv"\n[learner]\nkind = "MergedForest"\nweights = 1', "s.toml:5: weights must be"),
    ('learner = 3\n[sites]\na = "a.csv"', "s.toml:1: learner must be a section"),
    ('[sites]\na = "a.csv"\n[policy]\nmin_leav = 3', "s.toml:4: unknown key 'min_leav' in [policy]; did you mean"),
    ('[sites]\na = "a.csv"\n[policy]\nmin_leaf = 0', "s.toml:4: min_leaf must be at least 1"),
    (
        '[sites]\na = "a.csv"\n[policy]\nmessages = ["GrowLevl"]',
        "there is no message 'GrowLevl'; did you mean 'GrowLevel'?",
    ),
    ('label = "x\n[sites]', "s.toml:1: not valid TOML"),
    ('[sites]\na = "a.csv"\na = "a.csv"', "s.toml:3: not valid TOML: cannot overwrite a value"),
    ("a = [1,", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said[:50] for _, said in WRONG])
def test_mistakes_are_reported_with_their_line(tmp_path, text, said):
    with pytest.raises(sv.InputError) as caught:
        read_study(written(tmp_path, text + "\n"))
    assert said in str(caught.value)


def test_all_mistakes_are_reported_at_once(tmp_path):
    text = 'labl = "x"\ntest = 2\n[sites]\na = "none.csv"\n[learner]\nmax_depht = 1\n'
    with pytest.raises(sv.InputError) as caught:
        read_study(written(tmp_path, text))
    places = [line.split(": ")[0].rsplit(":", 1)[1] for line in str(caught.value).split("\n")]
    assert places == ["1", "2", "4", "6"]


def test_every_mistake_is_reported(tmp_path):
    text = """lable = "x"
seed = 3
max_depth = 4
test = 1.5
sums = "secret"
quorum = 2
[sites]
a = "none.csv"
[learner]
kind = "BOFRF"
tau = 3
exclude = ["x"]
n_estimators = "many"
[evaluation]
by = ["x", "x"]
importance = true
[policy]
min_leaf = 0
min_test = 0
"""
    said = [
        (1, "unknown key 'lable'; did you mean 'label'?"),
        (2, "unknown key 'seed'; it is called 'random_state'"),
        (3, "unknown key 'max_depth'; put it in [learner]"),
        (4, "test must be a number of at least 0 and below 1, got 1.5"),
        (5, "sums must be 'masked', 'ring' or 'trusted', got 'secret'"),
        (6, "quorum is for studies between machines; leave it out here"),
        (8, "site 'a': 'none.csv' does not exist"),
        (11, "tau must be a number of at least 0 and below 1, got 3"),
        (12, "unknown key 'exclude' in [learner] of kind BOFRF; put it before the first [section]"),
        (13, "n_estimators must be a whole number of at least 1, got 'many'"),
        (15, "by must be a list of columns, each once, got ['x', 'x']"),
        (18, "min_leaf must be at least 1, got 0"),
        (19, "min_test must be at least 1, got 0"),
    ]
    with pytest.raises(sv.InputError) as caught:
        read_study(written(tmp_path, text))
    found = str(caught.value).split("\n")
    for line, (number, words) in zip(found, said, strict=True):
        assert line.startswith(f"{tmp_path / 's.toml'}:{number}: {words}")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lable", "label"),
        ("labl", "label"),
        ("tabel", "table"),
        ("nmaes", "names"),
        ("random_sate", "random_state"),
        ("exlude", "exclude"),
        ("qourum", "quorum"),
        ("sampeling", "sampling"),
        ("sum", "sums"),
        ("Label", "label"),
    ],
)
def test_suggestions(word, meant):
    assert suggest(word, typed_keys(Study)) == f"did you mean {meant!r}?"


def test_unknown_words_without_a_suggestion():
    assert suggest("xyz", ["label", "test"]) == "known are label, test"


def test_errors_of_the_learner_point_at_their_line(tmp_path):
    study = read_study(written(tmp_path, '[sites]\na = "a.csv"\n[learner]\n\nn_rows = 3\n'))
    with pytest.raises(sv.InputError, match=r"s\.toml:5: n_rows is not built"), with_lines(study):
        raise sv.InputError.about("n_rows", "is not built yet; leave it out")


@pytest.mark.parametrize("name", ["none.toml", "."])
def test_no_such_file(tmp_path, name):
    with pytest.raises(sv.InputError, match=r"no study file|is a folder"):
        read_study(tmp_path / name)


def test_not_text(tmp_path):
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(sv.InputError, match="not UTF-8"):
        read_study(tmp_path / "s.toml")


def test_lines_of_keys():
    text = 'a = """\nb = 1\n"""\n\n# c = 1\n[x."y z"]\nd.e = [\n  1, # f = 2\n]\n"g" = { h = 1 }\n[[k]]\nl = 1'
    assert key_lines(text) == {
        ("a",): 1,
        ("x", "y z"): 6,
        ("x", "y z", "d"): 7,
        ("x", "y z", "d", "e"): 7,
        ("x", "y z", "g"): 10,
        ("x", "y z", "g", "h"): 10,
        ("k",): 11,
        ("k", "l"): 12,
    }


def test_the_fingerprint_follows_settings_rows_and_program(tmp_path):
    base = '[sites]\na = "a.csv"\n'
    same = fingerprint_of(read_study(written(tmp_path, base)), "1")
    assert fingerprint_of(read_study(written(tmp_path, f"# a remark\noutput = 'x'\n{base}")), "1") == same
    assert fingerprint_of(read_study(written(tmp_path, f"test = 0.5\n{base}")), "1") != same
    study = read_study(written(tmp_path, base))
    assert fingerprint_of(study, "2") != same
    (tmp_path / "a.csv").write_text("x,label\n1,no\n2,no\n")
    assert fingerprint_of(study, "1") != same
