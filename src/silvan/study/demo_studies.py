"""Demo studies: tables of the package or of scikit-learn, written as files with a study file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silvan.datasets import from_sklearn, heart_disease, income
from silvan.errors import InputError
from silvan.study.demo_hospitals import STUDY, write_hospitals
from silvan.util.files import write_whole
from silvan.util.readable import format_count

if TYPE_CHECKING:
    import polars as pl

CLINICS = ("Alder", "Birch", "Cedar", "Elm", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine", "Rowan", "Spruce")

MIN_ROWS = 8  # minimum rows per class and clinic, so that all can train and be evaluated
_MADE = "# Made by `silvan demo`"

_FILE = (
    _MADE
    + """; `silvan fit` runs it again. All keys are in docs/study.md.
name = "{name}"
{study}
output = "."

[{section}]
{tables}

[learner]
{learner}
{evaluation}{more}"""
)

_IMPORTANCE = """
[evaluation]
importance = true
"""


@dataclass(frozen=True)
class Demo:
    """A demo: its tables by site, its introduction, and its study file."""

    tables: "Mapping[str, pl.DataFrame] | Callable[[Path], dict[str, str]]"  # or what writes them and says where
    introduction: str
    name: str
    study: str
    learner: str
    section: str = "sites"
    evaluation: str = _IMPORTANCE
    more: str = ""


# -- the studies
def incomes(n: int | None, repeats: int | None) -> Demo:
    """Return the study of six kinds of employers."""
    return Demo(
        _own_rows(n, income(), "employer"),
        "Who earns more than 50,000 dollars? 2,400 people of six kinds of employers, nine attributes (census of 1994; "
        "Becker and Kohavi, UCI, CC BY 4.0). Employers may not pool their files. They train one forest from sums "
        "and exchange trees; each uses what suits it best (AutoForest). For honest intervals, "
        f"{_evaluated(repeats or 10, 'person')}.",
        "Income at six kinds of employers",
        f'label = "above_50k"\ntest = 0.2\nrepeats = {repeats or 10}',
        'kind = "AutoForest"\nn_estimators = 50',
    )


def heart(n: int | None, repeats: int | None) -> Demo:
    """Return the study of four hospitals."""
    return Demo(
        _own_rows(n, heart_disease(), "hospital"),
        "Heart disease at four hospitals: 920 patients, 13 attributes, many of them missing (Janosi, Steinbrunn, "
        "Pfisterer and Detrano, UCI, CC BY 4.0). Hospitals exchange trees and scores of these on their rows (BOFRF), "
        f"and each uses what suits it best. For honest intervals, {_evaluated(repeats or 10)}.",
        "Heart disease at four hospitals",
        f'label = "disease"\ntest = 0.1\nrepeats = {repeats or 10}',
        'kind = "BOFRF"\nn_estimators = 50',
    )


def breast_cancer(n: int | None, repeats: int | None) -> Demo:
    """Return the study of clinics that differ in size and share of malignant tumours."""
    import polars as pl  # slow to import

    frame = from_sklearn("breast_cancer")
    malignant = 1 - frame["label"].to_numpy()  # scikit-learn has benign as 1
    frame = frame.drop("label").with_columns(malignant=pl.Series(np.where(malignant == 1, "yes", "no")))
    hands = split_unevenly(malignant, n or 5)
    return Demo(
        {name: frame[rows] for name, rows in zip(CLINICS, hands, strict=False)},
        f"Breast cancer: {len(frame)} patients, 30 measurements of cell nuclei, split among {n or 5} clinics of "
        "uneven size and share of malignant tumours. One forest is grown from summed counts. For honest intervals, "
        f"{_evaluated(repeats or 3)}.",
        f"Breast cancer at {n or 5} clinics",
        f'label = "malignant"\ntest = 0.2\nrepeats = {repeats or 3}',
        'kind = "HistogramForest"\nn_estimators = 50\nmax_depth = 10',
    )


def diabetes(n: int | None, repeats: int | None) -> Demo:
    """Return the study of clinics that predict a number."""
    frame = from_sklearn("diabetes").rename({"label": "progression"})
    hands = split_unevenly(np.zeros(len(frame), np.int64), n or 4)
    return Demo(
        {name: frame[rows] for name, rows in zip(CLINICS, hands, strict=False)},
        f"Diabetes: {len(frame)} patients, ten measurements, and a number to predict, how far the disease progressed "
        f"in a year; split among {n or 4} clinics of uneven size. One forest is grown from summed counts. For "
        f"honest intervals, {_evaluated(repeats or 5)}.",
        f"Diabetes at {n or 4} clinics",
        f'label = "progression"\ntask = "regression"\ntest = 0.2\nrepeats = {repeats or 5}',
        'kind = "HistogramForest"\nn_estimators = 50\nmax_depth = 8\nmin_samples_leaf = 5',
    )


def columns(n: int | None, repeats: int | None) -> Demo:
    """Return the study of two parties with different columns of the same patients."""
    import polars as pl  # slow to import

    if n is not None or repeats is not None:
        raise InputError("--sites and --repeats are for rows; here a clinic and a laboratory hold columns")
    frame = from_sklearn("breast_cancer")
    frame = frame.with_columns(patient=pl.Series(range(1000, 1000 + len(frame))))
    names = [name for name in frame.columns if name not in ("label", "patient")]
    malignant = pl.Series("malignant", np.where(frame["label"].to_numpy() == 0, "yes", "no"))
    return Demo(
        {
            "clinic": frame.select("patient", *names[:10]).with_columns(malignant),
            "laboratory": frame.select("patient", *names[10:])[30:],
        },
        f"Breast cancer by columns: a clinic has 10 measurements and the diagnosis of {len(frame)} patients, a "
        "laboratory 20 other measurements of most of them. Patients are matched by private set intersection; the "
        "forest equals the one from the joined table, and no column leaves its owner.",
        "Breast cancer at a clinic and a laboratory",
        'label = "malignant"\nid = "patient"\ntest = 0.3',
        'kind = "VerticalForest"\nn_estimators = 50\nmax_depth = 6',
        "parties",
        "",
    )


def _hospitals(kind: str, n: int | None, repeats: int | None) -> Demo:
    """Return the study of hospitals with their own kind of data; the patients are the same for each kind."""
    names = CLINICS[: n or 3]
    what = "OMOP databases" if kind == "omop" else "folders of FHIR files"
    return Demo(
        lambda folder: write_hospitals(folder, names, kind),
        f"Stroke after atrial fibrillation at {len(names)} hospitals with {what} of made-up patients. A cohort query "
        "and covariates, which are part of the study, make the same columns at each hospital. For honest intervals, "
        f"{_evaluated(repeats or 3)}.",
        f"Stroke after atrial fibrillation at {len(names)} hospitals",
        f'label = "stroke_in_two_years"\ntest = 0.2\nrepeats = {repeats or 3}',
        'kind = "HistogramForest"\nn_estimators = 50\nmax_depth = 8\nmin_samples_leaf = 5',
        more=STUDY,
    )


DEMOS: dict[str, Callable[[int | None, int | None], Demo]] = {
    "income": incomes,
    "heart": heart,
    "breast-cancer": breast_cancer,
    "diabetes": diabetes,
    "columns": columns,
    "omop": lambda n, repeats: _hospitals("omop", n, repeats),
    "fhir": lambda n, repeats: _hospitals("fhir", n, repeats),
}
"""The studies by name."""


def _evaluated(repeats: int, who: str = "patient") -> str:
    times = "once" if repeats == 1 else f"{format_count(repeats)} times"
    return f"every {who} is evaluated {times}, by models that did not train on them"


def _own_rows(n: int | None, frame: "pl.DataFrame", site: str) -> dict[str, "pl.DataFrame"]:
    """Return the rows of each site, in their order."""
    if n is not None:
        raise InputError(f"--sites is for data that is split at random; here every {site} is its own site")
    names = frame[site].unique(maintain_order=True).to_list()
    return {name: frame.filter(frame[site] == name).drop(site) for name in names}


# -- files
def write_demo(folder: Path, demo: Demo) -> Path:
    """Write a study's tables and its file, and return its path; never overwrite a file that is not a demo's."""
    file = folder / "study.toml"
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_MADE):
        raise InputError(
            f"{str(file)!r} was not made by a demo and would be overwritten; choose another folder with --output"
        )
    (folder / "sites").mkdir(parents=True, exist_ok=True)
    places = demo.tables(folder) if callable(demo.tables) else _write_frames(folder, demo.tables)
    lines = [f'{name} = "{place}"' for name, place in places.items()]
    text = _FILE.format(
        name=demo.name,
        study=demo.study,
        section=demo.section,
        tables="\n".join(lines),
        learner=demo.learner,
        evaluation=demo.evaluation,
        more=demo.more,
    )
    write_whole(file, text.encode())
    return file


def _write_frames(folder: Path, frames: "Mapping[str, pl.DataFrame]") -> dict[str, str]:
    """Write tables as CSV files, remove those of an earlier demo, and return where they are."""
    places = {name: f"sites/{name.lower()}.csv" for name in frames}
    for name, frame in frames.items():
        write_whole(folder / places[name], frame.write_csv().encode())
    for stale in (folder / "sites").glob("*.csv"):
        if f"sites/{stale.name}" not in places.values():
            stale.unlink()
    return places


def split_unevenly(y: np.ndarray, n: int, seed: int = 0) -> list[np.ndarray]:
    """Return the rows of each clinic: sizes and class shares are Dirichlet samples."""
    rng = np.random.default_rng(seed)
    classes = int(y.max()) + 1
    sizes = rng.dirichlet(np.full(n, 2.0))
    skew = rng.dirichlet(np.ones(2), size=n) if classes > 1 else np.ones((n, 1))
    parts: list[list[int]] = [[] for _ in range(n)]
    for c in range(classes):
        rows = rng.permutation(np.flatnonzero(y == c))
        weights = sizes * skew[:, c]
        spare = len(rows) - MIN_ROWS * n
        counts = MIN_ROWS + np.diff(np.round(np.cumsum([0.0, *weights]) / weights.sum() * spare)).astype(int)
        for part, more in zip(parts, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            part.extend(more.tolist())
    return [np.sort(part) for part in parts]
