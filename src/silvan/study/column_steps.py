"""Studies of parties that hold columns of the same rows: what the commands do otherwise than for sites."""

import csv
import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.algorithms.baselines.in_one_place import joined
from silvan.algorithms.evaluation.figures import FEDERATED, Answer, Row, answer_of, figures_of
from silvan.algorithms.vertical.columns import columns_of
from silvan.errors import FormatError, InputError
from silvan.federation.federation import OVERALL, Federation
from silvan.study.run_folder import RUN, SHARES, Model, Record, Run, Site

if TYPE_CHECKING:
    from silvan.study.progress_bars import Progress
    from silvan.study.study_file import Study


def parties(federation: Federation) -> list[Site]:
    """Count the rows in common, which are every party's: all live in this process, so their owners are here."""
    schema, columns, positives = federation.schema, columns_of(federation), None
    if schema.n_classes == 2:
        positives = float(np.mean(joined(federation, columns.common).y == 1))
    return [Site(name, len(columns.training), len(columns.test), positives) for name in federation.sites]


def save(run: Run, model: Any) -> list[Model]:
    """Write the model's structure, and each party's share to a file of its own."""
    model.save(run.file(SHARES))
    sizes = (len(model.forest_), len(model.forest_.feature)) if _is_forest(model) else (0, 0)
    return [Model(SHARES, _fingerprint(model), *sizes)]


def _is_forest(model: Any) -> bool:
    return hasattr(model, "structure_")


def _fingerprint(model: Any) -> str:
    """Tell a model from others by all its parts, which must be there."""
    if _is_forest(model):
        return str(model.forest_.hash)
    parts = [model.model_.to_bytes(), *(share.to_bytes() for share in model.shares_.values())]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def judge(federation: Federation, model: Any, progress: "Progress", expected: float) -> tuple[list[Row], str | None]:
    """Judge the model beside what each party has alone and the joined table's; give the hash of that if a forest."""
    if not _is_forest(model):
        with progress.step("Judging"):
            return model.figures_on_test_rows(federation), None
    with progress.step("Growing the forest of the joined table to compare with", expected=expected):
        contenders = model.contenders(federation)
    with progress.step("Judging"):
        return model.figures_on_test_rows(federation, contenders), dict(contenders)["pooled"].hash


def restored(study: "Study", run: Run, record: Record) -> tuple[Federation, Any]:
    """Make the federation and the fitted learner of a run again."""
    model = opened(run, record)
    federation: Any = study.federation(schema=model.schema_)
    return federation, model


def opened(run: Run, record: Record) -> Any:
    """Read the model of a run; a party may have taken its share away."""
    from silvan import learners

    kind = record.study.get("learner", {}).get("kind")
    if kind not in ("VerticalForest", "VerticalLinear"):
        raise InputError(f"{str(run.folder)!r} names no learner for parties; run `silvan fit` again")
    if not record.models:
        raise InputError(f"{str(run.folder)!r} has no model yet; run `silvan fit` again to finish it")
    model = getattr(learners, kind).load(run.file(SHARES))
    parts = model.structure_ if _is_forest(model) else model.model_
    if not set(parts.parties) - set(model.shares_) and _fingerprint(model) != record.models[0].hash:
        raise FormatError(f"{run.file(SHARES)}: not the model that {RUN} names; one of the two was changed")
    return model


def on_table(study: "Study | None", run: Run, record: Record, table: Path) -> list[Row]:
    """Judge on a table of all columns, beside what parties have alone if their tables are as they were."""
    from silvan.data.encode import encode_features, encode_label
    from silvan.data.table import read_table

    model = opened(run, record)
    frame = read_table(str(table), model.schema_.label.name)
    X, y = encode_features(frame, model.schema_), encode_label(frame, model.schema_)
    if study is not None:
        federation, _ = restored(study, run, record)
        rows: list[Row]
        if _is_forest(model):
            rows = model.figures_on_table(federation, model.contenders(federation), str(table))
        else:
            rows = model.compare_on_rows(federation, X, y)
        return rows
    if _is_forest(model):
        replies = answer_of(model.forest_, X, np.zeros(X.shape[1], np.bool_))
    else:
        scores = model.score_rows(X)
        replies = Answer(scores, scores.argmax(axis=1))
    return [Row(OVERALL, FEDERATED, len(X), figures_of(model.schema_, replies, y))]


def predict(run: Run, tables: list[str], output: Path | None, *, fill: bool) -> None:
    """Predict rows that parties hold columns of, matched by their id."""
    from silvan.cli.predict_command import write_out
    from silvan.study.progress_bars import Progress

    progress, record = Progress(), run.read()
    model = opened(run, record)
    with progress.step("Matching rows"):
        federation = _federated(model, record, _named(tables, [site.name for site in record.sites]))
    with progress.step("Predicting"):
        replies = _answers(model, federation, fill)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(replies.columns)
    writer.writerows(replies.iter_rows())
    what = f"{len(replies):,} predictions by model {record.models[0].hash[:12]}"
    write_out(text.getvalue(), output, what)


def _named(words: list[str], names: list[str]) -> dict[str, str]:
    """Read PARTY=TABLE, one for each party."""
    found: dict[str, str] = {}
    for word in words:
        name = max((n for n in names if word.startswith(f"{n}=")), key=len, default=None)
        if name is None:
            raise InputError(
                f"name each party's table as PARTY=TABLE, the party one of {', '.join(names)}; got {word!r}"
            )
        if name in found:
            raise InputError(f"party {name!r} has two tables; name one")
        found[name] = word[len(name) + 1 :]
    lacking = [name for name in names if name not in found]
    if lacking:
        raise InputError(f"name the table of party {lacking[0]!r} too: {lacking[0]}=TABLE; the model needs all parties")
    return found


def _federated(model: Any, record: Record, tables: dict[str, str]) -> Federation:
    """Make a federation of new rows, of the columns that the model is of."""
    import warnings

    from silvan.data.table import listed, read_table
    from silvan.federate.by_columns import federate_columns

    parts = model.structure_ if _is_forest(model) else model.model_
    settings, frames = record.study, {}
    for party, path in tables.items():
        frame = read_table(path, model.schema_.label.name)
        wanted = [settings["id"], *parts.own_schema(party).names]
        absent = [name for name in wanted if name not in frame.columns]
        if absent:
            raise InputError(f"party {party!r}: {path!r} lacks {listed(absent)}; is it the right table?")
        frames[party] = frame.select(wanted).to_native()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that a party lacks are left out, or listed
        return federate_columns(
            frames,
            id=settings["id"],
            match=settings["match"],
            random_state=settings["random_state"],
            schema=model.schema_,
        )


def _answers(model: Any, federation: Federation, fill: bool) -> Any:
    """Give ids with the class and each class's probability, or the number."""
    import polars as pl

    classes = model.schema_.label.classes
    if classes is None:
        return model.predict(federation, incomplete=fill)
    replies = model.predict_proba(federation, incomplete=fill)
    shares = replies.select(map(str, classes)).to_numpy()
    best = pl.Series("prediction", [classes[code] for code in shares.argmax(axis=1)])
    named = {str(name): f"probability_{name}" for name in classes}
    rounded = replies.with_columns(pl.col(str(name)).round_sig_figs(6) for name in classes).rename(named)
    return rounded.insert_column(1, best)
