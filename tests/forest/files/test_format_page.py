"""docs/format.md names everything in a file, and a reader written from it alone gives the same predictions."""

import hashlib
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.forests import CLASSES, MIXED, random_forest, random_rows

from silvan.forest import predict as walk
from silvan.forest.arrays import ARRAYS, COMBINES, STAGE_ARRAYS
from silvan.forest.silvan_file import FORMAT, VERSION

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
TYPES = {"BOOL": "|b1", "I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4", "F64": "<f8"}


def rows_of_tables():
    return [re.findall(r"`([^`]+)`", line) for line in PAGE.splitlines() if line.startswith("| `")]


def test_page_names_everything(tmp_path):
    named = {row[0] for row in rows_of_tables()}
    staged(random_forest(0, gain=True)).save(tmp_path / "f")
    header, _ = parse((tmp_path / "f").read_bytes())
    assert set(header) <= named | {"__metadata__"}
    assert set(header["__metadata__"]) <= named
    arrays = {**ARRAYS, **STAGE_ARRAYS, "gain": np.float64}
    assert set(arrays) <= named
    assert set(arrays) | {"__metadata__"} == set(header)
    for name, dtype in arrays.items():
        row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)[0]
        assert np.dtype(dtype).name in row
        assert header[name]["dtype"] in row
    assert f"`{FORMAT}`" in PAGE
    assert f"There is one version, {VERSION}." in PAGE
    for combine in COMBINES:
        assert re.search(rf"^- `{combine}`: ", PAGE, re.MULTILINE)


def staged(forest):
    n = len(forest)
    return replace(forest, combine="stages", group=np.arange(n) // 2, say=np.arange(1.0, 1 + -(-n // 2)))


def parse(data):
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def arrays_of(header, body):
    """Each array's type, shape and bytes."""
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, (TYPES[entry["dtype"]], tuple(entry["shape"]), body[begin:end])


def digest_of(metadata, arrays):
    digest = hashlib.sha256()
    for key in sorted(set(metadata) - {"digest"}):
        digest.update(key.encode() + b"\0" + metadata[key].encode() + b"\0")
    for name in sorted(arrays):
        dtype, shape, octets = arrays[name]
        digest.update(f"{name}\0{dtype}\0{shape}\0".encode() + octets)
    return digest.hexdigest()


def hash_of(metadata, arrays):
    schema = json.loads(metadata["schema"])
    features = [
        [f["name"], f.get("kind", "numeric"), f.get("categories"), f.get("other", False)] for f in schema["features"]
    ]
    text = [features, schema["label"].get("classes"), metadata["combine"]]
    digest = hashlib.sha256(json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode())
    for name in [row[0] for row in rows_of_tables() if row[0] in arrays and row[0] != "gain"]:
        _, shape, octets = arrays[name]
        digest.update(f"{name} {shape}".encode() + octets)
    return digest.hexdigest()


def predict(metadata, arrays, row, absent=()):
    """The forest's output for a row, and the number of its class."""
    a = {name: np.frombuffer(octets, dtype).reshape(shape) for name, (dtype, shape, octets) in arrays.items()}
    kinds = [f.get("kind", "numeric") for f in json.loads(metadata["schema"])["features"]]
    inner, by_category = a["feature"] >= 0, [f >= 0 and kinds[f] == "categorical" for f in a["feature"]]
    answers = []
    for begin, end in zip(a["offsets"][:-1], a["offsets"][1:], strict=True):
        node = begin
        while a["feature"][node] >= 0:
            x = row[a["feature"][node]]
            if np.isnan(x):
                left = a["missing_left"][node]
            elif by_category[node]:
                bit, words = int(x) + 1, a["sets"][sum(by_category[:node])]
                left = int(words[bit // 64]) >> bit % 64 & 1
            else:
                left = x <= a["threshold"][node]
            k = inner[begin:node].sum()
            node = begin + (2 * k + 1 if left else 2 * k + 2)
        abstains = metadata["combine"] == "vote" and bool(set(absent) & set(a["feature"][begin:end]))
        answers.append(None if abstains else a["value"][(~inner)[:node].sum()])
    return together(metadata["combine"], a, answers)


def together(combine, a, answers):
    trees = [t for t, answer in enumerate(answers) if answer is not None]
    n = a["value"].shape[1]
    if combine == "stages":
        shares = np.zeros(n)
        for stage, say in enumerate(a["say"]):
            votes = votes_of([t for t in trees if a["group"][t] == stage], a["weights"], answers, n)
            shares += np.where(votes == votes.max(), say / (votes == votes.max()).sum(), 0)
        return shares / a["say"].sum(), shares.argmax()
    mean = sum(a["weights"][t] * answers[t] for t in trees) / sum(a["weights"][t] for t in trees)
    return mean, (votes_of(trees, a["weights"], answers, n) if combine == "vote" else mean).argmax()


def votes_of(trees, weights, answers, n):
    votes = np.zeros(n)
    for t in trees:
        votes[answers[t].argmax()] += weights[t]
    return votes


@pytest.mark.parametrize(
    ("combine", "n_classes"), [(c, n) for c in ("mean", "vote", "stages") for n in CLASSES if n > 0 or c != "stages"]
)
def test_a_reader_written_from_the_page_agrees(combine, n_classes, tmp_path):
    forest = random_forest(1, schema=MIXED, n_classes=n_classes, n_trees=5, equal_weights=False, gain=n_classes == 2)
    if combine == "stages":
        forest = staged(replace(forest, weights=np.array([1.0, 2.0, 1.0, 1.0, 3.0])))
    forest = replace(forest, combine=combine)
    forest.save(tmp_path / "f")
    header, body = parse((tmp_path / "f").read_bytes())
    metadata, arrays = header["__metadata__"], dict(arrays_of(header, body))
    assert digest_of(metadata, arrays) == metadata["digest"]
    assert hash_of(metadata, arrays) == metadata["hash"] == forest.hash
    X = random_rows(forest, 0, n=50)
    scores, classes = zip(*[predict(metadata, arrays, row) for row in X], strict=True)
    np.testing.assert_allclose(scores, forest.scores(X), rtol=0, atol=1e-14)
    if n_classes:
        np.testing.assert_array_equal(forest.classes[list(classes)], forest.predict(X))


def test_abstention_as_the_page_has_it(tmp_path):
    forest = random_forest(2, schema=MIXED, n_classes=3, n_trees=9, max_nodes=5)
    forest = replace(forest, combine="vote")
    absent = next(f for f in range(forest.n_features) if 0 < forest.uses[:, f].sum() < 9)
    forest.save(tmp_path / "f")
    header, body = parse((tmp_path / "f").read_bytes())
    X = random_rows(forest, 0, n=50)
    lacking = np.arange(forest.n_features) == absent
    arrays = dict(arrays_of(header, body))
    scores, classes = zip(*[predict(header["__metadata__"], arrays, row, {absent}) for row in X], strict=True)
    np.testing.assert_allclose(scores, walk.scores(forest, X, absent=lacking), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(classes, walk.decide(forest, X, absent=lacking))
