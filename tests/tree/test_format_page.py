"""docs/format.md names all that is in a file, and a reader written from it alone gives the same answers."""

import hashlib
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from forests import CLASSES, MIXED, random_forest, random_rows

from silvan.tree.forest import ARRAYS
from silvan.tree.save import FORMAT, VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
TYPES = {"BOOL": "|b1", "I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4", "F64": "<f8"}


def rows_of_tables():
    return [re.findall(r"`([^`]+)`", line) for line in PAGE.splitlines() if line.startswith("| `")]


def test_page_names_everything(tmp_path):
    named = {row[0] for row in rows_of_tables()}
    random_forest(0, gain=True).save(tmp_path / "f")
    header, _ = parse((tmp_path / "f").read_bytes())
    assert set(header) <= named | {"__metadata__"}
    assert set(header["__metadata__"]) <= named
    assert set(ARRAYS) | {"gain"} <= named
    for name, dtype in {**ARRAYS, "gain": np.float64}.items():
        row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)[0]
        assert np.dtype(dtype).name in row
        assert header[name]["dtype"] in row
    assert f"`{FORMAT}`" in PAGE
    assert re.search(rf"^\| {VERSION} \|", PAGE, re.MULTILINE)


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


def predict(metadata, arrays, row):
    a = {name: np.frombuffer(octets, dtype).reshape(shape) for name, (dtype, shape, octets) in arrays.items()}
    kinds = [f.get("kind", "numeric") for f in json.loads(metadata["schema"])["features"]]
    inner, by_category = a["feature"] >= 0, [f >= 0 and kinds[f] == "categorical" for f in a["feature"]]
    total = 0.0
    for t, begin in enumerate(a["offsets"][:-1]):
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
        total += a["weights"][t] * a["value"][(~inner)[:node].sum()]
    return total / a["weights"].sum()


@pytest.mark.parametrize("n_classes", CLASSES)
def test_a_reader_written_from_the_page_agrees(n_classes, tmp_path):
    forest = random_forest(1, schema=MIXED, n_classes=n_classes, n_trees=3, equal_weights=False, gain=n_classes == 2)
    forest.save(tmp_path / "f")
    header, body = parse((tmp_path / "f").read_bytes())
    metadata, arrays = header["__metadata__"], dict(arrays_of(header, body))
    assert digest_of(metadata, arrays) == metadata["digest"]
    assert hash_of(metadata, arrays) == metadata["hash"] == forest.hash
    X = random_rows(forest, 0, n=50)
    got = [predict(metadata, arrays, row) for row in X]
    np.testing.assert_allclose(got, forest.scores(X), rtol=0, atol=1e-14)
