"""The steps of a run whose parties hold columns of the same rows, where they differ from those of sites."""

import hashlib
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from silvan import learners
from silvan.algorithms.baselines.in_one_place import joined
from silvan.algorithms.evaluation.figures import FEDERATED, Answer, Row, answer_of, judged_row
from silvan.algorithms.vertical.columns import columns_of
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.sources.table_file import Table
from silvan.data.table import open_table, read_table
from silvan.errors import FormatError, InputError
from silvan.federate.by_columns import federate_columns
from silvan.federation.federation import OVERALL, Federation
from silvan.study.plan import Study
from silvan.study.progress_bars import Progress
from silvan.study.run_folder import RUN, SHARES, Model, Record, Run, Site
from silvan.study.study_file import make_federation
from silvan.util.readable import format_names


def parties(federation: Federation) -> list[Site]:
    """Return the parties with the number of rows in common; if all are in this process, the label may be counted."""
    schema, columns, positives = federation.schema, columns_of(federation), None
    if schema.n_classes == 2 and federation.local_sites:
        positives = float(np.mean(joined(federation, columns.common).y == 1))
    return [Site(name, len(columns.training), len(columns.test), positives) for name in federation.sites]


def save(run: Run, model: Any) -> list[Model]:
    """Write the model's structure, and each party's share to a file of its own."""
    model.save(run.file(SHARES))
    parts = coordinators_part(model)
    sizes = (len(parts), len(parts.owner)) if _is_forest(model) else (0, 0)
    return [Model(SHARES, _fingerprint(model), *sizes)]


def coordinators_part(model: Any) -> Any:
    """Return what the coordinator keeps of a model, whoever has the shares."""
    return model.structure_ if _is_forest(model) else model.model_


def is_whole(model: Any) -> bool:
    """Return whether the shares of all parties are known here."""
    return not set(coordinators_part(model).parties) - set(model.shares_)


def _is_forest(model: Any) -> bool:
    return hasattr(model, "structure_")


def _fingerprint(model: Any) -> str:
    """Return a hash of the model and of all parties' shares: the same for the same model.

    Where shares are not known here it is one of the coordinator's part alone, which differs from run to run.
    """
    if not is_whole(model):
        return _hash([coordinators_part(model).to_bytes()])
    if _is_forest(model):
        return str(model.forest_.hash)
    kept = model.model_
    parts = [model.schema_.to_json().encode(), *(a.tobytes() for a in (kept.present, kept.constant, kept.unit))]
    for share in model.shares_.values():
        design = share.design
        arrays = (design.fill, design.gaps, design.mean, design.scale, share.coefficients)
        parts += [share.party.encode(), *(array.tobytes() for array in arrays)]
    return _hash(parts)


def _hash(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _is_named(model: Any, named: str) -> bool:
    """Return whether a model is the one that a run names; version 0.1.0 named linear models by the bytes of files."""
    if _fingerprint(model) == named:
        return True
    parts = [] if _is_forest(model) else [model.model_, *model.shares_.values()]
    return bool(parts) and _hash(part.to_bytes() for part in parts) == named


def _known_schemas(model: Any) -> dict[str, Schema]:
    """Return the columns of the parties whose shares are there, by name."""
    return {name: share.schema if _is_forest(model) else share.design.schema for name, share in model.shares_.items()}


def _known_schema(model: Any) -> Schema:
    """Return the schema of the columns that are known by name."""
    return Schema(tuple(f for own in _known_schemas(model).values() for f in own.features), model.schema_.label)


def judge(federation: Federation, model: Any, progress: Progress, expected: float) -> tuple[list[Row], str | None]:
    """Judge the model beside each party's own and that of the joined table; return the latter's hash if a forest."""
    if not _is_forest(model):
        with progress.step("Judging"):
            return model.figures_on_test_rows(federation), None
    if not federation.local_sites:
        with progress.step("Judging"):
            return model.figures_on_test_rows(federation, []), None
    with progress.step("Growing the forest of the joined table to compare with", expected=expected):
        contenders = model.contenders(federation)
    with progress.step("Judging"):
        return model.figures_on_test_rows(federation, contenders), dict(contenders)["pooled"].hash


def restore_run(study: Study, run: Run, record: Record) -> tuple[Federation, Any]:
    """Return the federation and the fitted learner of a run."""
    model = read_model(run, record)
    return make_federation(study, schema=_known_schema(model)), model


def read_model(run: Run, record: Record) -> Any:
    """Read the model of a run; shares of parties may be missing."""
    kind = record.study.get("learner", {}).get("kind")
    if kind not in ("VerticalForest", "VerticalLinear"):
        raise InputError(f"{str(run.folder)!r} names no learner for parties; run `silvan fit` again")
    if not record.models:
        raise InputError(f"{str(run.folder)!r} has no model yet; run `silvan fit` again to finish it")
    model = getattr(learners, kind).load(run.file(SHARES))
    if is_whole(model) and not _is_named(model, record.models[0].hash):
        raise FormatError(f"{run.file(SHARES)}: not the model that {RUN} names; one of the two was changed")
    return model


def on_table(study: Study | None, run: Run, record: Record, table: Any) -> list[Row]:
    """Judge on a table of all columns; with a study, whose tables are unchanged, also the parties' own models."""
    model = read_model(run, record)
    frame = read_table(table, model.schema_.label.name, model.schema_)
    X, y = encode_features(frame, model.schema_), encode_label(frame, model.schema_)
    if study is not None:
        federation, _ = restore_run(study, run, record)
        rows: list[Row]
        if _is_forest(model):
            rows = model.figures_on_table(federation, model.contenders(federation), table)
        else:
            rows = model.compare_on_rows(federation, X, y)
        return rows
    if _is_forest(model):
        answer = answer_of(model.forest_, X, np.zeros(X.shape[1], np.bool_))
    else:
        scores = model.score_rows(X)
        answer = Answer(scores, scores.argmax(axis=1))
    return [judged_row(model.schema_, OVERALL, FEDERATED, answer, y)]


def predict(model: Any, record: Record, tables: dict[str, Any], progress: Progress, *, fill: bool) -> pl.DataFrame:
    """Match the rows of the parties' tables by their id; return ids with predictions."""
    with progress.step("Matching rows"):
        federation, padded = _federate_new_rows(model, record, tables, fill)
    with progress.step("Predicting"):
        found = _predictions(model, federation, fill)
    if padded and found[found.columns[0]].dtype.is_integer():
        ids = pl.Series(found.columns[0], [padded.get(value, str(value)) for value in found[found.columns[0]]])
        found = found.with_columns(ids)
    return found


def _federate_new_rows(
    model: Any, record: Record, tables: dict[str, Any], fill: bool
) -> tuple[Federation, dict[int, str]]:
    """Return a federation of new rows, with the columns that the model was fitted to, and ids with zeros in front."""
    known, settings, frames, padded = _known_schemas(model), record.study, {}, dict[int, str]()
    if settings["id"] is None:
        raise InputError("the parties of this run are other machines: `silvan study predict` asks them")
    for party, table in tables.items():
        opened = open_table(table, model.schema_.label.name, by_schema=True)
        opened.check_clear(model.schema_)
        frame = opened.by(model.schema_)
        wanted = [settings["id"], *(known[party].names if party in known else ())]
        absent = [name for name in wanted if name not in frame.columns]
        if absent:
            where = table.where if isinstance(table, Table) else repr(table)
            raise InputError(f"party {party!r}: {where} lacks {format_names(absent)}; is it the right table?")
        frames[party] = frame.select(wanted).to_native()
        written = (str(cell).strip() for cell in opened.with_texts(wanted[:1])[wanted[0]].to_list())
        padded = {int(text): text for text in written if text[:1] == "0" and text[1:].isdecimal()} | padded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that a party lacks are left out, or listed
        made = federate_columns(
            frames,
            id=settings["id"],
            match="keyed" if fill else settings["match"],  # rows that some party lacks are known by digests alone
            names=settings.get("names", "coded"),
            random_state=settings["random_state"],
            schema=_known_schema(model),
        )
    return made, padded


def _predictions(model: Any, federation: Federation, fill: bool) -> pl.DataFrame:
    """Return ids with the class and each class's probability, or with the number."""
    classes = model.schema_.label.classes
    if classes is None:
        numbers: pl.DataFrame = model.predict(federation, incomplete=fill)
        return numbers
    frame: pl.DataFrame = model.predict_proba(federation, incomplete=fill)
    shares = frame.select(map(str, classes)).to_numpy()
    threshold, codes = getattr(model, "threshold_", None), shares.argmax(axis=1)
    if threshold is not None:
        codes = (shares[:, 1] >= threshold).astype(np.int64)
    best = pl.Series("prediction", [classes[code] for code in codes])
    named = {str(name): f"probability_{name}" for name in classes}
    rounded = frame.with_columns(pl.col(str(name)).round_sig_figs(6) for name in classes).rename(named)
    return rounded.insert_column(1, best)
