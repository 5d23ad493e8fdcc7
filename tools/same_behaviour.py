"""Whether two versions of the code do the same, byte for byte.

::

    python tools/same_behaviour.py record OUT.json        # what the silvan on PYTHONPATH does
    python tools/same_behaviour.py compare A.json B.json  # exit code 1 if anything differs
    python tools/same_behaviour.py commits OLD NEW        # both, of two commits, in temporary work trees

``record`` runs small studies of every kind and notes SHA-256 digests: of forests, predictions and figures, of every
message to and from a site, of model files and exports, of journals, ledgers, budgets, run folders and a coordinator's
folder, and the texts of errors. It runs unchanged on any version, so it uses public names, the command line, and
``Site.receive``, where all messages pass.

Nothing is left to chance while it records. Random bytes (``os.urandom``, ``secrets``), keys (X25519, Ed25519, RSA) and
opendp's noise come from a stream that begins anew for each study, so the digests also notice what is drawn, how often
and in which order. The clock stands still: times are in the digests, and always the same. Studies run on one thread.
Not covered: FLARE and joining over a network, databases, private set intersection.
"""

import contextlib
import datetime
import hashlib
import io
import json
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[_threads] = "1"  # before the libraries are loaded
os.environ |= {"COLUMNS": "100", "TERM": "dumb"}

NOW = 1_767_322_800.0
"""When everything happens: 2026-01-02, 03:00 UTC."""

SITES = ("north", "east", "south")
SMALL = {"n_estimators": 8, "max_depth": 5}
STUMPS = {"n_estimators": 8}
ID = "person"

_LIBRARIES = ("numpy", "polars", "pandas", "sklearn.ensemble", "sklearn.datasets", "cryptography.x509", "rich", "typer")
"""What is imported before the clock stops: some of it cannot stand another ``datetime``."""

_LEFT = ("strategies_", "taus_", "weights_", "owners_", "chosen_", "clusters_", "settings_", "privacy_")
"""What learners keep after ``fit`` beside forests, where they have it."""


# -- nothing is left to chance


class Chance:
    """Random bytes that are always the same."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str) -> None:
        """Start over."""
        self._name, self._drawn = name, 0

    def __call__(self, n: int) -> bytes:
        """Return the next bytes."""
        self._drawn += 1
        return hashlib.shake_256(f"{self._name}\0{self._drawn}".encode()).digest(n)


class StillDatetime(datetime.datetime):
    """Dates with a fixed current time."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "StillDatetime":
        """Return the fixed time."""
        return cls.fromtimestamp(NOW, tz)


class SteadyNoise:
    """A mechanism of opendp with noise from the fixed stream."""

    def __init__(self, mechanism: Any, scale: float, chance: Chance) -> None:
        self.map, self._scale, self._chance = mechanism.map, scale, chance

    def __call__(self, counts: Any) -> list[int]:
        """Add noise."""
        import numpy as np

        drawn = np.random.default_rng(int.from_bytes(self._chance(16))).laplace(scale=self._scale, size=len(counts))
        return [int(count) + round(z) for count, z in zip(counts, drawn, strict=True)]


def leave_nothing_to_chance() -> Chance:
    """Replace random bytes, keys, noise and clocks before silvan is imported, which binds some of them by name."""
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(library)
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    chance, system = Chance(), os.urandom
    os.urandom = random._urandom = chance  # what ``secrets`` draws from, too
    uuid.uuid4 = lambda: uuid.UUID(bytes=system(16), version=4)  # numba draws some whenever it compiles
    for kind in (Ed25519PrivateKey, X25519PrivateKey):
        kind.generate = classmethod(lambda cls: cls.from_private_bytes(chance(32)))
    rsa.generate_private_key = lambda public_exponent, key_size: _rsa_key(public_exponent, key_size, chance)
    with contextlib.suppress(ImportError):
        import opendp.measurements as noise

        real = noise.make_laplace
        noise.make_laplace = lambda domain, metric, scale: SteadyNoise(real(domain, metric, scale), scale, chance)
    datetime.datetime = StillDatetime
    time.time, time.time_ns, time.monotonic = lambda: NOW, lambda: int(NOW * 1e9), lambda: 0.0
    return chance


def _rsa_key(exponent: int, bits: int, chance: Chance) -> Any:
    import gmpy2
    from cryptography.hazmat.primitives.asymmetric import rsa

    high = 3 << (bits // 2 - 2)  # so that the product has all its bits
    p, q = (int(gmpy2.next_prime(int.from_bytes(chance(bits // 16)) | high)) for _ in range(2))
    d = pow(exponent, -1, (p - 1) * (q - 1))
    crt = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
    return rsa.RSAPrivateNumbers(p, q, d, *crt, rsa.RSAPublicNumbers(exponent, p * q)).private_key()


# -- digests


def digest(value: Any) -> str:
    """Identify anything by its content."""
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        value = json.dumps(value, sort_keys=True, default=_plain).encode()
    return hashlib.sha256(value).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if hasattr(value, "write_csv"):  # a data frame
        return [str(value.dtypes), value.write_csv()]
    if hasattr(value, "tolist"):  # an array
        return [str(value.dtype), value.tolist()]
    return value.hash if type(value).__name__ == "Forest" else repr(value)


def folder_content(path: Path) -> dict[str, bytes]:
    """Read all files of a folder; its location does not count."""
    here = str(path.resolve()).encode()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes().replace(here, b"HERE") for file in files}


def database_content(path: Path) -> dict[str, Any]:
    """Read all rows of a SQLite file, whatever their order in it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = {name: sorted(map(repr, db.execute(f'SELECT * FROM "{name}"'))) for name in tables}  # noqa: S608
        columns = {name: [row[1:4] for row in db.execute(f"PRAGMA table_info('{name}')")] for name in tables}
        return {"rows": rows, "columns": columns, "whose": db.execute("PRAGMA application_id").fetchone()}


# -- what is recorded

Parts = Iterator[tuple[str, Any]]
STUDIES: dict[str, Callable[[Any, Path], Parts]] = {}
"""By name: given silvan and an empty folder, each yields what is noted, by name."""


def study(function: Callable[[Any, Path], Parts]) -> Callable[[Any, Path], Parts]:
    """Register a study for recording."""
    STUDIES[function.__name__.replace("_", " ")] = function
    return function


def record(only: str = "") -> dict[str, Any]:
    """Run all studies, or those whose names contain a text, and record digests."""
    chance = leave_nothing_to_chance()
    import numpy as np

    import silvan as sv

    np.set_printoptions(threshold=sys.maxsize)  # some of what learners keep is known by its ``repr``

    items: dict[str, Any] = {}
    for name, run in STUDIES.items():
        if only not in name:
            continue
        begun = time.perf_counter()
        chance.begin(name)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), listening() as heard:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", UserWarning)
                try:
                    for part, value in run(sv, Path()):
                        items[f"{name}: {part}"] = {"hash": digest(value), "detail": _detail(value)}
                except Exception as error:
                    items[f"{name}: error"] = {"hash": digest(_said(error)), "detail": _said(error)}
            texts = sorted({str(one.message) for one in warned if issubclass(one.category, UserWarning)})
            items[f"{name}: warnings"] = {"hash": digest(texts), "detail": f"{len(texts)}"}
            size = sum(int(line.split()[3]) + int(line.split()[5]) for line in heard)
            wire = {"hash": digest(heard), "detail": f"{len(heard)} messages, {size} bytes", "lines": list(heard)}
            items[f"{name}: wire"] = wire
        print(f"{time.perf_counter() - begun:7.1f} s  {name}", file=sys.stderr)
    packages = {name: version(name) for name in ("numpy", "numba", "polars", "scikit-learn", "cryptography", "msgspec")}
    return {"made with": {"python": platform.python_version(), **packages}, "items": items}


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Record every message to a site and its reply: site, verb, kind, sizes and digests."""
    from silvan.federation.site import Site

    heard: list[str] = []
    real = Site.receive

    def receive(self: Any, data: bytes, verb: str) -> bytes:
        answer = real(self, data, verb)
        sizes = f"{len(data)} {digest(data)[:16]} {len(answer)} {digest(answer)[:16]}"
        heard.append(f"{self.name.replace(' ', '_')} {verb} {kind_of(data)} {sizes}")
        return answer

    Site.receive = receive
    try:
        yield heard
    finally:
        Site.receive = real


def kind_of(data: bytes) -> str:
    """Return the name of a message's class, for people; comparisons do not need it."""
    import msgspec

    try:
        envelope = msgspec.msgpack.decode(data)
        return str((msgspec.msgpack.decode(envelope["body"]) if "signature" in envelope else envelope)["kind"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "?"


def _detail(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("\n", " / ") if len(value) <= 300 else f"{len(value)} characters"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, dict) and "exit code" in value:
        return " ".join([f"exit code {value['exit code']}", *value["errors"]])
    return value.hash[:12] if type(value).__name__ == "Forest" else f"{len(value)}" if hasattr(value, "__len__") else ""


def _line_text(line: Any) -> str:
    """Return a ledger's line in words, using the function name of that version."""
    return str(line.describe() if hasattr(line, "describe") else line.said())


def _said(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace(str(Path().resolve()), "HERE")
    return text if error.__cause__ is None else f"{text}\n{_said(error.__cause__)}"


# -- tables


def people(task: str = "binary", n: int = 480, seed: int = 0) -> Any:
    """Numbers, integers and text, with missing values, rare categories and a label that depends on them."""
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(seed)
    age, dose = rng.normal(50, 12, n), rng.integers(1, 6, n)
    sex, ward = rng.choice(["f", "m"], n), rng.choice(["a", "b", "c", "rare"], n, p=[0.5, 0.3, 0.15, 0.05])
    signal = age / 10 + dose * (ward == "a") + 2 * (sex == "f") + rng.normal(size=n)
    labels = {
        "binary": np.where(signal > np.quantile(signal, 0.6), "yes", "no"),
        "several": np.array(["low", "middle", "high"])[np.searchsorted([7, 9], signal)],
        "number": np.round(1000 + 7 * signal, 3),
    }
    gaps = rng.random((2, n)) < 0.1
    columns = {
        "age": pl.Series(age).set(pl.Series(gaps[0]), None),
        "dose": dose,
        "sex": sex,
        "ward": [None if gap else value for value, gap in zip(ward.tolist(), gaps[1], strict=True)],
        "noise": rng.normal(20, 5, n),
    }
    return pl.DataFrame({**columns, "label": labels[task]})


def dealt(frame: Any) -> dict[str, Any]:
    """Distribute the rows to the sites; the last one has fewer."""
    return {"north": frame[0::5].vstack(frame[1::5]), "east": frame[2::5].vstack(frame[3::5]), "south": frame[4::5]}


def public_schema(sv: Any, task: str = "binary") -> Any:
    """Define the meaning of columns without looking at them."""
    label = sv.Label("label", bounds=(1000, 1150)) if task == "number" else sv.Label("label", ("no", "yes"))
    features = [
        sv.Feature("age", bounds=(0, 100)),
        sv.Feature("dose", bounds=(1, 5)),
        sv.Feature("sex", "categorical", categories=("f", "m")),
        sv.Feature("ward", "categorical", categories=("a", "b", "c"), other=True),
    ]
    return sv.Schema.of(features, label)


def federated(sv: Any, task: str = "binary", **settings: Any) -> Any:
    """Make a federation of the sites; ``policy`` is a dict, ``schema`` may be "public", ``lost`` has no label."""
    tables = settings.pop("tables", None) or dealt(people(task))
    if "columns" in settings:
        columns = settings.pop("columns")
        tables = {site: frame.select(columns) for site, frame in tables.items()}
    if "lost" in settings:
        lost = settings.pop("lost")
        tables[lost] = tables[lost].drop("label")
    if settings.get("schema") == "public":
        settings["schema"] = public_schema(sv, task)
    policy = sv.Policy(**settings.pop("policy", {}))
    return sv.federate_rows(tables, policy=policy, n_jobs=1, **{"test": 0.3, **settings})


def parted(task: str = "binary") -> dict[str, Any]:
    """Distribute the columns to a bank, which has the label, and a shop, each with rows that the other lacks."""
    import numpy as np
    import polars as pl

    frame = people(task, 120).with_columns(pl.Series(ID, np.random.default_rng(1).permutation(1000)[:120]))
    bank = frame.select(ID, "age", "ward", "label")[:110]
    return {"bank": bank, "shop": frame.select(ID, "dose", "sex", "noise")[5:].reverse()}


def parties(sv: Any, task: str = "binary", **settings: Any) -> Any:
    """Make a federation of the parties."""
    return sv.federate_columns(parted(task), id=ID, label="label", n_jobs=1, **{"test": 0.3, **settings})


# -- one table


@study
def one_table(sv: Any, folder: Path) -> Parts:
    """Estimators, model files, exports."""
    from sklearn.datasets import load_diabetes, load_iris

    X, y = load_iris(return_X_y=True)
    plain = sv.ForestClassifier(n_estimators=5, max_depth=4, oob_score=True, n_jobs=1).fit(X, y)
    numbers = sv.ForestRegressor(n_estimators=5, max_depth=4, n_jobs=1).fit(*load_diabetes(return_X_y=True))
    mixed = {}
    for task in ("binary", "several", "number"):
        frame = people(task)
        kind = sv.ForestRegressor if task == "number" else sv.ForestClassifier
        mixed[task] = kind(n_estimators=5, max_depth=5, n_jobs=1).fit(frame.drop("label"), frame["label"])
    weighted = sv.ForestClassifier(
        n_estimators=5, criterion="entropy", max_features=None, class_weight="balanced", bootstrap=False, n_jobs=1
    ).fit(people().drop("label"), people()["label"])
    for name, model in {"numeric": plain, "regression": numbers, "weighted": weighted, **mixed}.items():
        forest = model.forest_
        forest.save(folder / "model.silvan")
        yield f"{name} forest", forest
        yield f"{name} file", (folder / "model.silvan").read_bytes()
        yield f"{name} read again", sv.Forest.load(folder / "model.silvan")
        yield f"{name} importances", forest.importances()
        forest.to_onnx(folder / "model.onnx")
        yield f"{name} onnx", (folder / "model.onnx").read_bytes()
        yield f"{name} treelite", forest.to_treelite().serialize_bytes()
    yield "out of bag", plain.oob_score_
    yield "probabilities", plain.predict_proba(X)
    yield "numbers", mixed["number"].predict(people("number", seed=5).drop("label"))
    yield "permuted", plain.forest_.importances(X, y)
    yield "to scikit-learn and back", sv.Forest.from_sklearn(plain.forest_.to_sklearn())


# -- sites

_ADAPTIVE = {"columns": ("dose", "sex", "noise", "label"), "policy": {"messages": ("*", "AdaptiveLevel")}}
_PRIVATE = {"schema": "public", "sums": "masked", "test": 0.0}
_FITS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "local": ("LocalForest", SMALL, {}),
    "pooled": ("PooledForest", SMALL, {}),
    "merged": ("MergedForest", SMALL, {}),
    "merged by trees": ("MergedForest", SMALL | {"weights": "trees"}, {}),
    "merged by votes": ("MergedForest", SMALL | {"weights": "votes", "equal": False, "max_trees": 3}, {}),
    "merged, number": ("MergedForest", SMALL, {"task": "number"}),
    "histogram": ("HistogramForest", SMALL, {}),
    "histogram, ring": ("HistogramForest", SMALL, {"sums": "ring"}),
    "histogram, masked": ("HistogramForest", SMALL, {"sums": "masked"}),
    "histogram, several classes": ("HistogramForest", SMALL | {"class_weight": "balanced"}, {"task": "several"}),
    "histogram, number": ("HistogramForest", SMALL | {"feature_sampling": "tree"}, {"task": "number"}),
    "histogram, number, masked": ("HistogramForest", SMALL, {"task": "number", "sums": "masked"}),
    "histogram, signed": ("HistogramForest", SMALL, {"signed": True}),
    "histogram, signed, ring": ("HistogramForest", SMALL, {"signed": True, "sums": "ring"}),
    "histogram, signed, masked": ("HistogramForest", SMALL, {"signed": True, "sums": "masked"}),
    "histogram, cold": ("HistogramForest", SMALL, {"cold": True, "sums": "masked"}),
    "histogram, timeout": ("HistogramForest", SMALL, {"timeout": 600.0}),
    "histogram, little memory": ("HistogramForest", SMALL, {"memory": "1MB"}),
    "histogram, a site lost": ("HistogramForest", SMALL, {"quorum": 2, "schema": "public", "lost": "south"}),
    "histogram, few test rows": ("HistogramForest", SMALL, {"policy": {"min_test": 60}}),
    "adaptive": ("HistogramForest", SMALL | {"bins": "adaptive"}, _ADAPTIVE),
    "adaptive, weighted": ("HistogramForest", SMALL | {"bins": "adaptive", "class_weight": {"yes": 2.0}}, _ADAPTIVE),
    "private tables": ("HistogramForest", {"epsilon": 2.0, "n_rows": 480}, _PRIVATE),
    "private tables, rows counted": ("HistogramForest", {"epsilon": 2.0, "tolerate": 1}, _PRIVATE | {"sums": "ring"}),
    "private tables at sites": ("HistogramForest", {"epsilon": 2.0, "noise": "site"}, _PRIVATE),
    "private tables, number": ("HistogramForest", {"epsilon": 2.0, "n_rows": 480}, _PRIVATE | {"task": "number"}),
    "private levels": ("HistogramForest", SMALL | {"epsilon": 20.0, "private": "levels"}, _PRIVATE),
    "private levels at sites": (
        "HistogramForest",
        SMALL | {"epsilon": 20.0, "private": "levels", "noise": "site"},
        _PRIVATE | {"sums": "trusted"},
    ),
    "private input": ("HistogramForest", SMALL | {"epsilon": 20.0, "private": "input"}, _PRIVATE),
    "BOFRF": ("BOFRF", SMALL, {}),
    "BOFRF, ring": ("BOFRF", SMALL, {"sums": "ring"}),
    "BOFRF, masked": ("BOFRF", SMALL, {"sums": "masked"}),
    "BOFRF, personal": ("BOFRF", SMALL | {"personal": True}, {}),
    "BOFRF, personal, several classes": ("BOFRF", SMALL | {"personal": True, "validation": 0.3}, {"task": "several"}),
    "BOFRF, clusters": ("BOFRF", SMALL | {"clusters": 2}, {}),
    "BOFRF, paper": ("BOFRF", SMALL | {"protocol": "paper", "personal": True}, {}),
    "BOFRF, tuned": ("BOFRF", {"tune": {"max_depth": [2, 4], "n_estimators": [4, 6]}}, {}),
    "BOFRF, equal": ("BOFRF", SMALL | {"equal": True, "max_trees": 4}, {}),
    "BOPPID": ("BOPPID", STUMPS | {"tau": 0.3}, {}),
    "BOPPID, printed": ("BOPPID", STUMPS | {"printed": True}, {}),
    "AdaBoostPL": ("AdaBoostPL", STUMPS, {}),
    "MultBoost": ("MultBoost", STUMPS, {}),
    "LocalAdaBoost": ("LocalAdaBoost", STUMPS | {"criterion": "entropy"}, {}),
}
"""By name: a learner, its parameters, and what is particular about the federation."""


def _fit(kind: str, parameters: dict[str, Any], settings: dict[str, Any]) -> Callable[[Any, Path], Parts]:
    def run(sv: Any, folder: Path) -> Parts:
        fed = federated(sv, **settings)
        model = getattr(sv, kind)(**parameters).fit(fed)
        yield from _fitted(model, fed)
        if settings.get("test", 0.3):
            yield "figures", model.evaluate(fed)

    return run


def _fitted(model: Any, fed: Any) -> Parts:
    forests = {site: forest.hash for site, forest in model.forests_.items()}
    yield "forest", model.forest_
    yield "forests of sites", forests
    yield "rounds and bytes", [model.rounds_, fed.agreement_rounds, fed.exchanges, model.bytes_, fed.rows, fed.lost]
    yield "traffic", sorted([*key, n] for key, n in fed.traffic.items())
    for name in _LEFT:
        if getattr(model, name, None) is not None:
            yield name, getattr(model, name)


STUDIES |= {name: _fit(*parts) for name, parts in _FITS.items()}


@study
def brought_forests(sv: Any, folder: Path) -> Parts:
    """Pretrained forests of sites, fitted and not."""
    from sklearn.ensemble import RandomForestClassifier

    X, y = people(seed=7).drop("label"), people(seed=7)["label"]
    own = sv.ForestClassifier(**SMALL, n_jobs=1).fit(X, y).forest_
    unfitted = RandomForestClassifier(n_estimators=4, max_depth=3, random_state=0)
    fed = federated(sv, columns=("dose", "noise", "label"), forests={"south": unfitted})
    yield "unfitted", sv.BOFRF(**SMALL, validation=0.2).fit(fed).forest_
    fed = federated(sv, forests={"north": own})
    model = sv.BOFRF(**SMALL, validation=0.2, personal=True).fit(fed)
    yield from _fitted(model, fed)
    yield "figures", model.evaluate(fed)


@study
def tables_of_all_kinds(sv: Any, folder: Path) -> Parts:
    """Files, a database, arrays, and one table with a column that names the site."""
    tables = dealt(people())
    tables["north"].write_csv(folder / "north.csv")
    tables["east"].write_parquet(folder / "east.parquet")
    with contextlib.closing(sqlite3.connect(folder / "south.db")) as db, db:
        db.execute("CREATE TABLE visits (age REAL, dose INTEGER, sex TEXT, ward TEXT, noise REAL, label TEXT)")
        db.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", tables["south"].rows())
    stored = {"north": "north.csv", "east": "east.parquet", "south": "sqlite:///south.db?table=visits"}
    for memory in (None, "1MB"):
        model = sv.HistogramForest(**SMALL).fit(federated(sv, tables=stored, memory=memory))
        yield f"files, {memory}", model.forest_
    whole = people().with_columns(clinic=people()["ward"].fill_null("none"))
    fed = sv.federate_rows(whole, site="clinic", exclude=["noise"], test=0.2, random_state=5, n_jobs=1)
    yield "one table", sv.HistogramForest(**SMALL, random_state=3).fit(fed).forest_
    arrays = {site: (frame.select("dose", "noise").to_numpy(), frame["label"]) for site, frame in tables.items()}
    yield "arrays", sv.HistogramForest(**SMALL).fit(sv.federate_rows(arrays, n_jobs=1)).forest_


@study
def advice(sv: Any, folder: Path) -> Parts:
    """Which sites are similar."""
    fed = federated(sv)
    told = sv.advise(fed)
    yield "in words", str(told)
    yield "frame", told.frame()
    yield "distances", [told.distances, told.chance, told.vectors]
    yield "two clusters", str(sv.advise(federated(sv), k=2))
    vectors = {"a": [0.1, 0.9], "b": [0.2, 0.8], "c": [0.9, 0.1], "d": [0.7, 0.2]}
    yield "of vectors", [sv.site_distances(vectors, metric) for metric in ("manhattan", "euclidean", "minkowski")]
    yield "clusters of vectors", [sv.cluster_sites(vectors, k) for k in (1, 2, 3)]


@study
def journal(sv: Any, folder: Path) -> Parts:
    """Keep a journal, and resume from it."""

    def fit(**settings: Any) -> tuple[Any, Any]:
        fed = federated(sv, journal=str(folder / "journal.sqlite"), **settings)
        model = sv.HistogramForest(**SMALL).fit(fed)
        merged = sv.BOFRF(**SMALL, personal=True).fit(fed)
        figures = model.evaluate(fed)
        fed.close()
        return [model.forest_, merged.forest_], figures

    yield "first", fit(sums="masked")
    yield "rows", database_content(folder / "journal.sqlite")
    yield "again", fit(sums="masked")
    yield "rows again", database_content(folder / "journal.sqlite")
    try:
        fit(sums="ring")
    except sv.SilvanError as error:
        yield "of another study", _said(error)


@study
def ledgers(sv: Any, folder: Path) -> Parts:
    """Keep folders of sites: keys, ledgers, approvals."""
    name = "rows of north, east, south; label label; test 0.3; random_state 0"
    fed = federated(sv, ledgers=folder / "sites", policy={"approve": True}, signed=True, sums="ring")
    try:
        sv.HistogramForest(**SMALL).fit(fed)
    except sv.SilvanError as error:
        yield "not approved", _said(error)
    for site in SITES:
        yield f"approved by {site}", command("site", "approve", f"sites/{site}", name)
    sv.HistogramForest(**SMALL).fit(fed)
    sv.MergedForest(**SMALL).fit(fed)
    yield "files", folder_content(folder / "sites")
    yield "lines", [_line_text(line) for line in fed.site("east").outbox.ledger.lines()]
    yield "shown", command("site", "ledger", "sites/north")
    yield "verified", command("site", "ledger", "sites/north", "--verify")
    with (folder / "sites" / "north" / "ledger.jsonl").open("a") as file:
        file.write("something else\n")
    yield "spoilt", command("site", "ledger", "sites/north", "--verify")


@study
def budgets(sv: Any, folder: Path) -> Parts:
    """Spend privacy budgets until they are used up."""
    settings = {"schema": "public", "sums": "masked", "policy": {"epsilon": 3.0}, "budgets": folder / "budgets"}
    fed = federated(sv, **settings, test=0.0)
    yield "forest", sv.HistogramForest(epsilon=2.0, n_rows=480).fit(fed).forest_
    again = federated(sv, **settings, test=0.0)
    yield "again", sv.HistogramForest(epsilon=2.0, n_rows=480).fit(again).forest_
    try:
        sv.HistogramForest(epsilon=1.5, n_rows=480).fit(again)
    except sv.SilvanError as error:
        yield "used up", _said(error)
    for site in SITES:
        yield f"rows of {site}", database_content(folder / "budgets" / f"{site}.sqlite")


# -- parties


def _parts_of_vertical(sv: Any, folder: Path, task: str, **settings: Any) -> Parts:
    fed = parties(sv, task, **settings)
    model = sv.VerticalForest(**SMALL).fit(fed)
    yield from _fitted(model, fed)
    yield "predictions", [model.predict(fed), model.predict(fed, method="classical")]
    if settings.get("match", "keyed") == "keyed":
        yield "incomplete rows", [model.predict(fed, incomplete=True), model.lacking_]
    yield "figures", model.evaluate(fed)
    model.save(folder / "model")
    yield "files", folder_content(folder / "model")
    yield "read again", sv.VerticalForest.load(folder / "model").forest_
    yield "the joined table's", sv.PooledForest(**SMALL).fit(fed).forest_


@study
def vertical(sv: Any, folder: Path) -> Parts:
    """Vertical forests of classes."""
    yield from _parts_of_vertical(sv, folder, "binary")


@study
def vertical_number(sv: Any, folder: Path) -> Parts:
    """Vertical forests of a number, with signed messages and parties that are rebuilt for every one."""
    yield from _parts_of_vertical(sv, folder, "number", signed=True, cold=True)


@study
def vertical_secret(sv: Any, folder: Path) -> Parts:
    """Parties that agree on a shared key; every party discloses its splits."""
    fed = parties(sv, "several", random_state=None, ledgers=folder / "parties")
    yield from _fitted(sv.VerticalForest(**SMALL, auditor=True).fit(fed), fed)
    yield "ledger", (folder / "parties" / "shop" / "ledger.jsonl").read_bytes()


@study
def vertical_journal(sv: Any, folder: Path) -> Parts:
    """Resume a vertical study from its journal."""
    for _ in range(2):
        fed = parties(sv, journal=str(folder / "journal.sqlite"))
        model = sv.VerticalForest(**SMALL).fit(fed)
        yield "forest", [model.forest_, model.predict(fed)]
        fed.close()
        yield "rows", database_content(folder / "journal.sqlite")


@study
def vertical_encrypted(sv: Any, folder: Path) -> Parts:
    """Encrypted labels."""
    fed = parties(sv)
    model = sv.VerticalForest(n_estimators=2, max_depth=2, labels="encrypted").fit(fed)
    yield from _fitted(model, fed)
    yield "predictions", model.predict_proba(fed)


def _parts_of_linear(sv: Any, folder: Path, task: str) -> Parts:
    fed = parties(sv, task)
    model = sv.VerticalLinear(alpha=2.0).fit(fed)
    yield "coefficients", model.coefficients()
    yield "rounds and bytes", [model.rounds_, model.n_iter_, model.bytes_]
    yield "predictions", [model.predict(fed), model.predict(fed, incomplete=True), model.lacking_]
    yield "figures", model.evaluate(fed)
    model.save(folder / "model")
    yield "files", folder_content(folder / "model")
    yield "read again", sv.VerticalLinear.load(folder / "model").coefficients()


@study
def linear(sv: Any, folder: Path) -> Parts:
    """Logistic regression by columns."""
    yield from _parts_of_linear(sv, folder, "several")


@study
def linear_number(sv: Any, folder: Path) -> Parts:
    """Linear regression by columns."""
    yield from _parts_of_linear(sv, folder, "number")


# -- what is refused


@study
def refusals(sv: Any, folder: Path) -> Parts:
    """Errors that leave a site, and the site's own reason, which stays there."""
    grown, public = sv.HistogramForest(**SMALL), {"schema": "public", "test": 0.0}
    bad = dealt(people())
    tries: dict[str, Callable[[], Any]] = {
        "another kind of column": lambda: grown.fit(
            federated(sv, tables=bad | {"east": bad["east"].with_columns(age="sex")}, **public)
        ),
        "no label": lambda: federated(sv, tables=bad | {"east": bad["east"].drop("label")}),
        "a table that is not there": lambda: federated(sv, tables=bad | {"east": "no.csv"}),
        "a class that is not in the schema": lambda: grown.fit(
            federated(sv, tables=bad | {"east": people("several")}, **public)
        ),
        "a closed kind": lambda: sv.HistogramForest(**SMALL, bins="adaptive").fit(federated(sv)),
        "kinds that are named": lambda: grown.fit(federated(sv, policy={"messages": ("CountRows",)}, **public)),
        "too few sites": lambda: grown.fit(federated(sv, policy={"min_sites": 4})),
        "too small leaves": lambda: sv.MergedForest(**SMALL).fit(federated(sv, policy={"min_leaf": 9})),
        "adaptive bins of a number": lambda: sv.HistogramForest(bins="adaptive").fit(federated(sv, "number")),
        "masked adaptive bins": lambda: sv.HistogramForest(bins="adaptive").fit(federated(sv, sums="masked")),
        "missing values in adaptive bins": lambda: sv.HistogramForest(bins="adaptive").fit(
            federated(sv, policy={"messages": ("*", "AdaptiveLevel")})
        ),
        "a forest that may have seen all": lambda: sv.BOFRF().fit(
            federated(
                sv, forests={"north": sv.ForestClassifier(**SMALL).fit(people().drop("label"), people()["label"])}
            )
        ),
        "no noise beside a budget": lambda: grown.fit(federated(sv, policy={"epsilon": 1.0}, **public)),
        "a schema found by asking": lambda: sv.HistogramForest(epsilon=1.0).fit(federated(sv)),
        "not approved": lambda: grown.fit(federated(sv, policy={"approve": True})),
        "two sites in a ring": lambda: federated(sv, tables={"a": people(), "b": people()}, sums="ring"),
        "not a federation": lambda: grown.fit(people()),
        "not for classes": lambda: sv.HistogramForest(criterion="squared_error").fit(federated(sv)),
        "excluded by a wrong name": lambda: federated(sv, exclude=["agee"]),
        "rows for columns": lambda: sv.VerticalForest().fit(federated(sv)),
        "no id": lambda: sv.federate_columns(parted(), id="nobody"),
        "not a file": lambda: sv.Forest.load(folder / "none.silvan"),
    }
    for name, one in tries.items():
        try:
            one()
            yield name, "not refused"
        except Exception as error:
            yield name, _said(error)


@study
def bad_messages(sv: Any, folder: Path) -> Parts:
    """Messages that a site refuses, and its replies, letter by letter."""
    import msgspec

    from silvan.federation.site import Site

    for signed in (False, True):
        fed = federated(sv, signed=signed)
        site, kept, real = fed.site("north"), [], Site.receive
        Site.receive = lambda self, data, verb, real=real, kept=kept: (
            kept.append((self.name, data, verb)) or real(self, data, verb)
        )
        sv.HistogramForest(**SMALL).fit(fed)
        Site.receive = real
        data, verb = next((data, verb) for name, data, verb in kept if name == "north" and verb == "total")
        message = msgspec.msgpack.decode(data)
        given = {
            "nothing": b"",
            "nonsense": b"\x93nonsense",
            "cut short": data[:-5],
            "again": data,
            "unknown kind": msgspec.msgpack.encode(message | {"kind": "Everything"}),
            "another body": msgspec.msgpack.encode(message | {"body": b"\x80"}),
            "another study": msgspec.msgpack.encode(message | {"study": "mine"}),
            "another site's": next(other for name, other, _ in kept if name == "east"),
        }
        for name, bad in given.items():
            yield f"{name}, {'signed' if signed else 'plain'}", site.receive(bad, verb)
        yield f"by another verb, {'signed' if signed else 'plain'}", site.receive(data, "ask")
        lines = site.outbox.ledger.lines()
        yield f"ledger, {'signed' if signed else 'plain'}", [_line_text(line) for line in lines]


# -- the command line


def command(*words: str) -> dict[str, Any]:
    """Run a command in this process; progress on standard error depends on time and is left out."""
    import silvan

    settings = tomllib.loads((Path(silvan.__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = settings["project"]["scripts"]["silvan"].partition(":")
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, ["silvan", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            getattr(import_module(module), name)()
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        sys.argv = before
    here = str(Path().resolve())
    told = [line.replace(here, "HERE") for line in err.getvalue().splitlines() if line.startswith(("silvan:", " " * 8))]
    return {"exit code": code, "said": out.getvalue().replace(here, "HERE"), "errors": told}


_SITES_STUDY = """\
name = "three clinics"
test = 0.3
sums = "masked"
output = "run"

[sites]
north = "north.csv"
east = "east.csv"
south = "south.csv"

[learner]
kind = "{kind}"
n_estimators = 5
max_depth = 3
"""

_PARTIES_STUDY = """\
id = "person"
test = 0.3
output = "run"

[parties]
bank = "bank.csv"
shop = "shop.csv"

[learner]
n_estimators = 3
max_depth = 3
"""


def _run_folder(folder: Path) -> Parts:
    files = folder_content(folder / "run")
    yield "journal", database_content(folder / "run" / "journal.sqlite")
    for name, data in files.items():
        if not name.startswith("journal"):
            yield name, data


@study
def command_line(sv: Any, folder: Path) -> Parts:
    """Take a study file from fit to report."""
    for site, frame in dealt(people()).items():
        frame.write_csv(folder / f"{site}.csv")
    (folder / "study.toml").write_text(_SITES_STUDY.format(kind="HistogramForest"))
    people(seed=3, n=40).write_csv(folder / "new.csv")
    yield "advise", command("advise", "study.toml")
    yield "fit", command("fit", "study.toml")
    yield from _run_folder(folder)
    yield "fit again", command("fit", "study.toml")
    yield "predict", command("predict", "run", "new.csv")
    yield "predict from the file", command("predict", "run/model.silvan", "new.csv")
    yield "evaluate", command("evaluate", "run")
    yield "evaluate on a table", command("evaluate", "run", "new.csv")
    yield "report", command("report", "run")
    yield "audit", command("audit", "run")
    yield "audit.json", (folder / "run" / "audit.json").read_bytes()
    (folder / "study.toml").write_text(_SITES_STUDY.format(kind="BOFRF") + "personal = true\n")
    yield "fit another study", command("fit", "study.toml")
    yield "fit afresh", command("fit", "study.toml", "--fresh")
    yield "models", {path.name: path.read_bytes() for path in (folder / "run").glob("model*.silvan")}
    yield "evaluate BOFRF", command("evaluate", "run")
    (folder / "study.toml").write_text(_SITES_STUDY.format(kind="HistogramForst") + "max_deph = 3\n[polcy]\n")
    yield "mistakes", command("fit", "study.toml")
    yield "nothing there", [command("fit", "no.toml"), command("predict", "no", "no.csv"), command("report", ".")]


@study
def command_line_of_parties(sv: Any, folder: Path) -> Parts:
    """Take a study file of parties from fit to predictions."""
    for party, frame in parted().items():
        frame.write_csv(folder / f"{party}.csv")
    (folder / "study.toml").write_text(_PARTIES_STUDY)
    yield "fit", command("fit", "study.toml")
    yield from _run_folder(folder)
    yield "predict", command("predict", "run", "bank=bank.csv", "shop=shop.csv", "--fill")
    yield "evaluate", command("evaluate", "run")


@study
def coordinator_folder(sv: Any, folder: Path) -> Parts:
    """Create a federation of machines: keys, certificates, FLARE's folders, an invitation."""
    yield "init", command("study", "init", "heart", "--site", "north", "--site", "south", "--columns", "age, label")
    yield "invite", command("study", "invite", "north", "--in", "heart")
    yield from folder_content(folder / "heart").items()
    yield "status", command("study", "status", "--in", "heart")


# -- comparing


def compare(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Report item by item whether two records are the same."""
    if a["made with"] != b["made with"]:
        print(f"note: made with {a['made with']} and {b['made with']}")
    different = 0
    for name in dict.fromkeys([*a["items"], *b["items"]]):
        one, other = a["items"].get(name), b["items"].get(name)
        same = one is not None and other is not None and one["hash"] == other["hash"]
        different += not same
        print(f"{'same     ' if same else 'DIFFERENT'}  {name}  ({_difference(one, other)})")
    total = len(a["items"].keys() | b["items"].keys())
    print(f"all {total} items are the same" if not different else f"{different} of {total} items are DIFFERENT")
    return not different


def _difference(one: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    if one is None or other is None:
        which, found = ("second", other) if one is None else ("first", one)
        return f"only in the {which}: {found['detail']}"
    if one["hash"] == other["hash"]:
        return str(one["detail"])
    told = f"{one['detail']} | {other['detail']}"
    pairs = zip(one.get("lines", []), other.get("lines", []), strict=False)
    first = next((f"; message {i}: {a} | {b}" for i, (a, b) in enumerate(pairs, 1) if a != b), "")
    return told + first


def commits(old: str, new: str) -> bool:
    """Record two commits in separate work trees, and compare."""
    git = ["git", "-C", str(Path(__file__).parent)]
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name, commit in (("old", old), ("new", new)):
            tree, out = Path(folder) / name, Path(folder) / f"{name}.json"
            subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)  # noqa: S603
            try:
                environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
                words = [sys.executable, str(Path(__file__).resolve()), "record", str(out)]
                subprocess.run(words, check=True, env=environment, cwd=folder)  # noqa: S603
            finally:
                subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)  # noqa: S603
            records.append(json.loads(out.read_text()))
    return compare(*records)


def main(words: list[str]) -> int:
    """Run the command line."""
    match words:
        case ["record", out] | ["record", out, _]:
            path = Path(out).resolve()
            path.write_text(json.dumps(record(*words[2:]), indent=1) + "\n")
            return 0
        case ["compare", a, b]:
            return int(not compare(json.loads(Path(a).read_text()), json.loads(Path(b).read_text())))
        case ["commits", old, new]:
            return int(not commits(old, new))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
