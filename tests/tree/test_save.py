"""Files: what was saved comes back; what was changed is refused or is a forest all the same."""

import json
import re
import struct

import numpy as np
import pytest
from forests import CLASSES, MIXED, NUMBERS, random_forest, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as to_bytes

from silvan import Feature, Forest, FormatError, Label, Schema, VersionError
from silvan.tree.forest import ARRAYS
from silvan.tree.save import FORMAT, VERSION, _digest


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A forest with splits of both kinds, and its file."""
    forest = random_forest(3, schema=MIXED, n_classes=3, n_trees=3, max_nodes=15, gain=True)
    assert len(forest.sets) > 2
    path = tmp_path_factory.mktemp("valid") / "forest.silvan"
    forest.save(path)
    return forest, path.read_bytes()


def read(path, data):
    path.write_bytes(data)
    return Forest.load(path)


def content(forest):
    """What a file of this forest says: metadata and arrays, to be changed."""
    arrays = {name: getattr(forest, name).copy() for name in (*ARRAYS, "gain")}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "schema": forest.schema.to_json(),
        "combine": forest.combine,
    }
    return metadata, arrays


def forge(metadata, arrays):
    """Write a file whose hash and digest fit whatever it says: only the validator stands in its way."""
    unchecked = object.__new__(Forest)
    known = {name: arrays.get(name, np.zeros(0, dtype)) for name, dtype in ARRAYS.items()}
    try:
        schema = Schema.from_json(metadata["schema"])
    except (FormatError, KeyError):
        schema = NUMBERS
    vars(unchecked).update(known, schema=schema, combine=metadata.get("combine", ""))
    metadata = {**metadata, "hash": unchecked.hash}
    metadata["digest"] = _digest(metadata, arrays)
    return to_bytes(arrays, metadata)


# -- there and back


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    schema=st.sampled_from([NUMBERS, MIXED]),
    n_classes=st.sampled_from(list(CLASSES)),
    n_trees=st.integers(1, 4),
    equal_weights=st.booleans(),
    gain=st.booleans(),
)
def test_round_trip(tmp_path_factory, **parameters):
    forest = random_forest(**parameters)
    path = tmp_path_factory.mktemp("there") / "forest.silvan"
    forest.save(path)
    back = Forest.load(path)
    assert back == forest
    assert back.schema == forest.schema
    for name in ARRAYS:
        assert getattr(back, name).tobytes() == getattr(forest, name).tobytes()
    if parameters["gain"]:
        assert back.importances() == forest.importances()
    else:
        assert back.gain is None
    X = random_rows(forest, 0, n=20)
    np.testing.assert_array_equal(back.scores(X), forest.scores(X))


def test_names_of_any_kind_come_back(tmp_path):
    names = ("a\0b", 'quote"', "Größe", "\U0001f332", " ", "\\u0000", "__metadata__")
    schema = Schema(tuple(map(Feature, names)), Label("ÿ", ("", "\n", "Ω")))
    forest = random_forest(0, schema=schema, n_classes=3)
    forest = Forest(schema, **{name: getattr(forest, name) for name in ARRAYS})
    forest.save(tmp_path / "odd name ü")
    assert Forest.load(tmp_path / "odd name ü").schema == schema


def test_forging_a_valid_file_works(valid, tmp_path):
    forest, _ = valid
    assert read(tmp_path / "f", forge(*content(forest))) == forest


# -- versions, and files that are something else


def test_a_newer_version_is_refused_by_name(valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(VersionError, match=r"f: written in version 2 .* reads up to 1; upgrade silvan"):
        read(tmp_path / "f", forge({**metadata, "version": "2"}, arrays))
    # even if it holds what this version has never heard of
    arrays["calibration"] = np.zeros(3, np.float16)
    del arrays["sets"]
    with pytest.raises(VersionError, match="version 99999999 "):
        read(tmp_path / "f", forge({**metadata, "version": "99999999"}, arrays))


@pytest.mark.parametrize("version", ["0", "", "-1", "1.0", " 1", "१", "1" * 5000])
def test_no_such_version(version, valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(FormatError, match="version") as caught:
        read(tmp_path / "f", forge({**metadata, "version": version}, arrays))
    assert not isinstance(caught.value, VersionError)


@pytest.mark.parametrize("key", ["format", "version", "schema", "combine", "hash", "digest"])
def test_every_metadata_key_is_needed(key, valid, tmp_path):
    metadata, arrays = content(valid[0])
    metadata = {**metadata, "hash": "", "digest": ""}
    del metadata[key]
    with pytest.raises(FormatError, match=key):
        read(tmp_path / "f", to_bytes(arrays, metadata))


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_is_needed_in_its_type(name, valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(FormatError, match=f"array '{name}' is missing or of another type"):
        read(tmp_path / "f", forge(metadata, {**arrays, name: arrays[name].astype(np.int16)}))
    del arrays[name]
    with pytest.raises(FormatError, match=f"array '{name}' is missing or of another type"):
        read(tmp_path / "f", forge(metadata, arrays))


def test_unknown_arrays_are_refused(valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(FormatError, match="unknown array 'extra'"):
        read(tmp_path / "f", forge(metadata, {**arrays, "extra": np.zeros(2)}))


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F4", "C64", "NOPE"])
def test_types_that_numpy_may_not_have(dtype, tmp_path):
    header = {
        "__metadata__": {
            "format": FORMAT,
            "version": "1",
            "schema": "",
            "combine": "",
            "hash": "",
            "digest": "",
        },
        "feature": {"dtype": dtype, "shape": [2], "data_offsets": [0, 16 if dtype == "C64" else 4]},
    }
    text = json.dumps(header).encode()
    with pytest.raises(FormatError):
        read(tmp_path / "f", struct.pack("<Q", len(text)) + text + bytes(16 if dtype == "C64" else 4))


def test_files_of_other_kinds(tmp_path):
    for data in (b"", b"{}", b"\0" * 8, b"\xff" * 64, b"PK\x03\x04" + bytes(99), to_bytes({"a": np.ones(2)})):
        with pytest.raises(FormatError, match=re.escape(str(tmp_path / "f"))):
            read(tmp_path / "f", data)
    with pytest.raises(FileNotFoundError):
        Forest.load(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        Forest.load(tmp_path)


# -- damage


def test_truncated_files(valid, tmp_path):
    _, data = valid
    for size in range(0, len(data), 7):
        with pytest.raises(FormatError):
            read(tmp_path / "f", data[:size])
    with pytest.raises(FormatError):
        read(tmp_path / "f", data + b"\0")


def damaged(data, rng):
    """Change some bytes: flip a bit, write others, cut out, put in, repeat."""
    data = bytearray(data)
    # half of the time in the header, which is the smaller and livelier part
    end = 8 + struct.unpack("<Q", data[:8])[0]
    at = int(rng.integers(0, end if rng.random() < 0.5 else len(data)))
    size = int(rng.integers(1, 9))
    match rng.integers(0, 6):
        case 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        case 1:
            data[at : at + 1] = rng.bytes(1)
        case 2:
            data[at : at + size] = rng.bytes(size)
        case 3:
            del data[at : at + size]
        case 4:
            data[at:at] = rng.bytes(size)
        case 5:
            to = int(rng.integers(0, len(data)))
            data[to : to + size] = data[at : at + size]
    return bytes(data)


def test_thousands_of_damaged_files(valid, tmp_path):
    forest, data = valid
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(4000):
        try:
            same = read(tmp_path / "f", damaged(data, rng))
        except FormatError:
            refused += 1
        else:
            # a change that says nothing, such as a space in the header
            assert same == forest
    assert refused > 3000


# -- forgery: hash and digest fit, so the validator alone decides

ODD = {
    "i": [0, 1, -1, -2, 2, 3, 127, 255, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf, 1e308, -1e308, 3.4028235e38, 5e-324, 2.0],
    "u": [0, 1, 2, 2**63, 2**64 - 1],
    "b": [0, 1, 2, 255],
}


def forged_array(array, rng):
    """Change an array's content or its shape."""
    array = array.copy()
    flat = array.reshape(-1)
    kind = rng.integers(0, 8)
    if kind <= 3 and len(flat):
        at = rng.integers(0, len(flat), rng.integers(1, 4))
        odd = np.array(ODD[array.dtype.kind], object)
        with np.errstate(over="ignore"):
            if array.dtype.kind == "b":
                flat.view(np.uint8)[at] = rng.choice(odd, len(at))
            elif array.dtype == np.int32:
                flat[at] = rng.choice(odd[:10], len(at)).astype(np.int32)
            else:
                flat[at] = rng.choice(odd, len(at)).astype(array.dtype)
        return array
    if kind == 4 and len(flat):
        octets = flat.view(np.uint8)
        octets[rng.integers(0, len(octets))] = rng.integers(0, 256)
        return array
    if kind == 5 and len(array):
        return np.delete(array, rng.integers(0, len(array)), axis=0)
    if kind == 6 and len(array):
        at = int(rng.integers(0, len(array)))
        return np.insert(array, at, array[rng.integers(0, len(array))], axis=0)
    shapes = [(-1,), (1, -1), (-1, 1), ()]
    shape = shapes[rng.integers(0, len(shapes))]
    return array.reshape(-1)[:1].reshape(()) if shape == () and len(flat) else array.reshape(shape or -1)


def forged_schema(text, rng):
    """Change the schema: other kinds, categories, classes and features."""
    schema = json.loads(text)
    features = schema["features"]
    feature = features[rng.integers(0, len(features))]
    match rng.integers(0, 9):
        case 0:
            features.pop()
        case 1:
            features.append({"name": "new"})
        case 2:
            feature["kind"] = rng.choice(["numeric", "categorical", "other"])
        case 3:
            feature["categories"] = ["a"] * int(rng.integers(0, 3))
        case 4:
            feature.pop("categories", None)
        case 5:
            schema["label"]["classes"] = rng.choice([None, 5, "a"], 3).tolist()
        case 6:
            schema["label"].pop("classes")
        case 7:
            feature["name"] = features[0]["name"]
        case 8:
            features.reverse()
    return json.dumps(schema)


def test_thousands_of_forged_files(valid, tmp_path):
    forest, _ = valid
    rng = np.random.default_rng(1)
    X = random_rows(random_forest(0, schema=MIXED), 0, n=70)
    refused = taken = 0
    for _ in range(4000):
        metadata, arrays = content(forest)
        for _ in range(rng.integers(1, 3)):
            if rng.random() < 0.15:
                metadata["schema"] = forged_schema(forest.schema.to_json(), rng)
            else:
                name = rng.choice(list(arrays))
                arrays[name] = forged_array(arrays[name], rng)
        try:
            other = read(tmp_path / "f", forge(metadata, arrays))
        except FormatError:
            refused += 1
            continue
        taken += 1
        width = other.n_features
        assert len(other.scores(np.resize(X, (len(X), width)), n_jobs=1)) == len(X)
        if taken % 10 == 0:
            # what was taken is a forest like any other: it can be saved and read again
            other.save(tmp_path / "g")
            assert Forest.load(tmp_path / "g") == other
    assert refused > 1000
    assert taken > 100
