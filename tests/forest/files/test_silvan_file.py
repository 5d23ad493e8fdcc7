"""Files: what was saved is read back; a changed file is refused or is a valid forest."""

import hashlib
import json
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest, random_rows
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as to_bytes

from silvan import Feature, Forest, FormatError, Label, Schema, VersionError
from silvan.forest.arrays import ARRAYS, STAGE_ARRAYS
from silvan.forest.predict import as_matrix
from silvan.forest.score import score_numbers, score_trees
from silvan.forest.silvan_file import FORMAT, VERSION
from silvan.forest.tensors import content_digest

STAGES = {"combine": "stages", "group": [0, 1, 1], "say": [0.5, 2.0]}
COMBINES = {"mean": {}, "vote": {"combine": "vote"}, "stages": STAGES}


def example(combine="mean"):
    """A forest with splits of both kinds."""
    forest = random_forest(3, schema=MIXED, n_classes=3, n_trees=3, max_nodes=15, gain=True)
    assert len(forest.sets) > 2
    return replace(forest, **COMBINES[combine])


@pytest.fixture(scope="module")
def valid():
    """A forest and its file."""
    forest = example()
    return forest, forest.to_bytes()


def read(path, data):
    path.write_bytes(data)
    return Forest.load(path)


def content(forest):
    """The content of this forest's file: metadata and arrays, to be changed."""
    named = {name: getattr(forest, name) for name in (*ARRAYS, *STAGE_ARRAYS, "gain")}
    arrays = {name: array.copy() for name, array in named.items() if array is not None}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "schema": forest.schema.to_json(),
        "combine": forest.combine,
    }
    return metadata, arrays


def forge(metadata, arrays):
    """Writes a file whose hash and digest match any content: only the validator can refuse it."""
    unchecked = object.__new__(Forest)
    known = {name: arrays.get(name, np.zeros(0, dtype)) for name, dtype in ARRAYS.items()}
    known.update({name: arrays[name] for name in STAGE_ARRAYS if name in arrays})
    try:
        schema = Schema.from_json(metadata["schema"])
    except (FormatError, KeyError):
        schema = NUMBERS
    vars(unchecked).update(known, schema=schema, combine=metadata.get("combine", ""))
    metadata = {**metadata, "hash": unchecked.hash}
    metadata["digest"] = content_digest(metadata, arrays)
    return to_bytes(arrays, metadata)


# -- round trips


@examples(30)
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


@pytest.mark.parametrize("combine", COMBINES)
def test_forging_a_valid_file_works(combine, tmp_path):
    forest = example(combine)
    assert read(tmp_path / "f", forge(*content(forest))) == forest


@examples(30)
@given(
    seed=st.integers(0, 2**32),
    schema=st.sampled_from([NUMBERS, MIXED]),
    n_classes=st.sampled_from(list(CLASSES)),
    n_trees=st.integers(1, 4),
    gain=st.booleans(),
)
def test_round_trip_of_votes_and_stages(tmp_path_factory, **parameters):
    plain = random_forest(**parameters, equal_weights=False)
    plain = replace(plain, weights=plain.weights + 0.5)
    forests = [replace(plain, combine="vote")]
    if parameters["n_classes"]:
        n = parameters["n_trees"]
        forests.append(replace(plain, combine="stages", group=(np.arange(n) + 1) // 2, say=np.arange(n // 2 + 1) + 0.5))
    path = tmp_path_factory.mktemp("there") / "forest.silvan"
    for forest in forests:
        forest.save(path)
        back = Forest.load(path)
        assert back == forest
        assert back.combine == forest.combine
        assert path.read_bytes() == back.to_bytes()
        X = random_rows(forest, 0, n=20)
        np.testing.assert_array_equal(back.scores(X), forest.scores(X))
        np.testing.assert_array_equal(back.predict(X), forest.predict(X))
        for name in STAGE_ARRAYS:
            assert (getattr(back, name) is None) == (forest.combine != "stages")


# -- versions, and other files


def test_the_bytes_of_version_1():
    for forest, hash_, file in [
        (
            random_forest(3, schema=MIXED, n_classes=3, n_trees=3, max_nodes=15, gain=True, equal_weights=False),
            "9305f38698b0550e24321387b03290b0a5f56ae06a237f8b5ebff724f1c75933",
            "e8855e393173cbadb64fc76ff8a4fa48e41348b57bb23d100f6fb53b60eb0a46",
        ),
        (
            random_forest(3, n_classes=0, n_trees=2),
            "4dfca4741611a37117b8377e314dcb7e2e8baf7b97f997c5f388d157c449d4cb",
            "eb5202c3e0f659d6b2cd6bf235e311070da133adc9e950ca117fdaa45c3386e0",
        ),
    ]:
        assert forest.hash == hash_
        assert hashlib.sha256(forest.to_bytes()).hexdigest() == file


def test_stages_need_their_arrays_in_their_types_and_others_have_none(tmp_path):
    metadata, arrays = content(example("stages"))
    for name in STAGE_ARRAYS:
        lacking = {key: array for key, array in arrays.items() if key != name}
        with pytest.raises(FormatError, match="stages need group and say"):
            read(tmp_path / "f", forge(metadata, lacking))
        with pytest.raises(FormatError, match=f"array '{name}' is missing or of another type"):
            read(tmp_path / "f", forge(metadata, {**arrays, name: arrays[name].astype(np.int16)}))
    for combine in ("vote", "mean"):
        with pytest.raises(FormatError, match="are for trees that combine by stages"):
            read(tmp_path / "f", forge({**metadata, "combine": combine}, arrays))
    with pytest.raises(FormatError, match="combine 'most' is unknown"):
        read(tmp_path / "f", forge({**metadata, "combine": "most"}, arrays))


def test_another_version_is_refused_by_name(valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(VersionError, match=r"f: written in version 4 .* reads 1; use the silvan"):
        read(tmp_path / "f", forge({**metadata, "version": "4"}, arrays))
    # even if it holds what this version has never heard of
    arrays["calibration"] = np.zeros(3, np.float16)
    del arrays["sets"]
    with pytest.raises(VersionError, match="version 99999999 "):
        read(tmp_path / "f", forge({**metadata, "version": "99999999"}, arrays))


@pytest.mark.parametrize("version", ["", "-1", "1.0", " 1", "१", "1" * 5000])
def test_no_such_version(version, valid, tmp_path):
    metadata, arrays = content(valid[0])
    with pytest.raises(FormatError, match="version") as caught:
        read(tmp_path / "f", forge({**metadata, "version": version}, arrays))
    assert not isinstance(caught.value, VersionError)


def test_a_file_has_the_hash_of_its_trees(valid, tmp_path):
    """A matching digest is not enough: references to a forest use the hash in its file."""
    metadata, arrays = content(valid[0])
    metadata["hash"] = random_forest(4).hash
    metadata["digest"] = content_digest(metadata, arrays)
    with pytest.raises(FormatError, match="do not match its hash"):
        read(tmp_path / "f", to_bytes(arrays, metadata))


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
def test_types_missing_in_numpy(dtype, tmp_path):
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
    """Changes some bytes: flips a bit, writes others, cuts out, inserts, repeats."""
    data = bytearray(data)
    # half of the time in the header, which is smaller and more sensitive
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


@pytest.mark.parametrize(("combine", "n"), [("mean", 1200), ("vote", 200), ("stages", 400)])
def test_many_damaged_files(combine, n):
    forest = example(combine)
    data = forest.to_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(n):
        try:
            same = Forest.from_bytes(damaged(data, rng))
        except FormatError:
            refused += 1
        else:
            # a change without meaning, such as a space in the header
            assert same == forest
    assert refused > 0.75 * n


# -- forgery: hash and digest match, so the validator alone decides

ODD = {
    "i": [0, 1, -1, -2, 2, 3, 127, 255, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf, 1e308, -1e308, 3.4028235e38, 5e-324, 2.0],
    "u": [0, 1, 2, 2**63, 2**64 - 1],
    "b": [0, 1, 2, 255],
}


def forged_array(array, rng):
    """Changes an array's content or its shape."""
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
    if kind == 5 and array.ndim and len(array):
        return np.delete(array, rng.integers(0, len(array)), axis=0)
    if kind == 6 and array.ndim and len(array):
        at = int(rng.integers(0, len(array)))
        return np.insert(array, at, array[rng.integers(0, len(array))], axis=0)
    shapes = [(-1,), (1, -1), (-1, 1), ()]
    shape = shapes[rng.integers(0, len(shapes))]
    return array.reshape(-1)[:1].reshape(()) if shape == () and len(flat) else array.reshape(shape or -1)


def forged_schema(text, rng):
    """Changes the schema: other kinds, categories, classes and features."""
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


@pytest.mark.parametrize(("combine", "n"), [("mean", 1500), ("vote", 200), ("stages", 600)])
def test_many_forged_files(combine, n):
    forest = example(combine)
    rng = np.random.default_rng(1)
    X = random_rows(random_forest(0, schema=MIXED), 0, n=70)
    refused = taken = 0
    for _ in range(n):
        metadata, arrays = content(forest)
        for _ in range(rng.integers(1, 3)):
            if combine != "mean" and rng.random() < 0.1:
                metadata["combine"] = str(rng.choice(list(COMBINES)))
            elif rng.random() < 0.15:
                metadata["schema"] = forged_schema(forest.schema.to_json(), rng)
            else:
                name = rng.choice(list(arrays))
                arrays[name] = forged_array(arrays[name], rng)
        try:
            other = Forest.from_bytes(forge(metadata, arrays))
        except FormatError:
            refused += 1
            continue
        taken += 1
        width = other.n_features
        rows = np.resize(X, (len(X), width))
        assert len(other.scores(rows, n_jobs=1)) == len(X)
        if combine != "mean":
            assert len(other.predict(rows, n_jobs=1)) == len(X)
            check_scoring(other, rows)
        if taken % 10 == 0:
            # an accepted forest is like any other: it can be saved and read again
            assert Forest.from_bytes(other.to_bytes()) == other
    assert refused > n // 4
    assert taken > n // 40


def check_scoring(forest, X):
    """Trees of other sites are scored before anything else is done with them."""
    X = as_matrix(forest.schema, X)
    if forest.classes is None:
        assert score_numbers(forest, X, np.zeros(len(X)), 1.0, n_jobs=1)[:, 0].tolist() == [len(X)] * len(forest)
    else:
        y = np.arange(len(X)) % len(forest.classes)
        assert (score_trees(forest, X, y, n_jobs=1).sum(axis=(1, 2)) == len(X)).all()
