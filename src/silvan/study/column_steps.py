"""Steps of a run over columns, where they differ from those over rows."""

import warnings
from typing import Any

import numpy as np
import polars as pl

from silvan.algorithms.evaluation.evaluation import FEDERATED, Row, evaluate_answers, read_rows
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.scores_of_rows import RowScores
from silvan.data.readers.table_file import Table
from silvan.data.table import open_table
from silvan.errors import FormatError, InputError
from silvan.federate.by_columns import federate_columns
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.learners.in_one_place import joined
from silvan.learners.in_shares import InShares
from silvan.learners.registry import learners_for
from silvan.study.listener import Listener
from silvan.study.run_folder import RUN, SHARES, Record, Run, SiteRows
from silvan.study.study import Study
from silvan.study.study_file import make_federation
from silvan.tree.sampling import make_key
from silvan.util.readable import format_names


def parties(federation: Federation) -> list[SiteRows]:
    """Return the parties with the number of common rows and, if all are in this process, the share of positives."""
    schema, columns, positives = federation.schema, columns_of(federation), None
    if schema.n_classes == 2 and federation.local_sites:
        positives = float(np.mean(joined(federation, columns.common).y == schema.label.positive_code))
    return [SiteRows(name, len(columns.training), len(columns.test), positives) for name in federation.sites]


def read_model(run: Run, record: Record) -> InShares:
    """Read the model of a run; shares may be missing."""
    spec = learners_for("columns").get(record.study.get("learner", {}).get("kind"))
    learner = None if spec is None else spec.load()
    if learner is None or not issubclass(learner, InShares):
        raise InputError(f"{str(run.folder)!r} names no learner for parties; run `silvan fit` again")
    if not record.models:
        raise InputError(f"{str(run.folder)!r} has no model yet; run `silvan fit` again to finish it")
    model = learner.load(run.file(SHARES))
    if model.is_whole and model.fingerprint != record.models[0].hash:
        raise FormatError(f"{run.file(SHARES)}: not the model that {RUN} names; one of the two was changed")
    return model


def on_table(study: Study | None, run: Run, record: Record, table: Any) -> list[Row]:
    """Evaluate on a table of all columns; with a study whose tables are unchanged, include the parties' own models."""
    model = read_model(run, record)
    if study is not None:
        return model.evaluation(make_federation(study, schema=model.named_columns), table).rows
    X, y, absent = read_rows(model.schema_, table)
    answers = {FEDERATED: model.answers(X, absent)}
    return evaluate_answers(model.schema_, OVERALL, answers, y, make_key(0, "gains"))


def predict(model: InShares, record: Record, tables: dict[str, Any], progress: Listener, *, fill: bool) -> pl.DataFrame:
    """Match rows of the parties' tables by id; return ids with predictions."""
    with progress.step("Matching rows"):
        federation, padded = _federate_new_rows(model, record, tables, fill)
    with progress.step("Predicting"):
        found = _predictions(model, federation, fill)
    if padded and found[found.columns[0]].dtype.is_integer():
        ids = pl.Series(found.columns[0], [padded.get(value, str(value)) for value in found[found.columns[0]]])
        found = found.with_columns(ids)
    return found


def _federate_new_rows(
    model: InShares, record: Record, tables: dict[str, Any], fill: bool
) -> tuple[Federation, dict[int, str]]:
    """Return a federation of new rows with the model's columns, and the ids with leading zeros."""
    known, settings, frames, padded = model.share_schemas, record.study, {}, dict[int, str]()
    if settings["id"] is None:
        raise InputError("the parties of this run are other machines: use `silvan study predict`")
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
        warnings.simplefilter("ignore", UserWarning)  # incomplete rows are left out, or listed
        made = federate_columns(
            frames,
            id=settings["id"],
            match="keyed" if fill else settings["match"],  # incomplete rows are found by digests only
            names=settings.get("names", "coded"),
            random_state=settings["random_state"],
            schema=model.named_columns,
        )
    return made, padded


def _predictions(model: InShares, federation: Federation, fill: bool) -> pl.DataFrame:
    """Return ids with the predicted class and class probabilities, or with the number."""
    classes = model.schema_.label.classes
    if classes is None:
        return model.predict_by_id(federation, incomplete=fill)
    frame = model.probabilities_by_id(federation, incomplete=fill)
    best = pl.Series("prediction", model.named(model.decided(RowScores(frame.select(map(str, classes)).to_numpy()))))
    named = {str(name): f"probability_{name}" for name in classes}
    rounded = frame.with_columns(pl.col(str(name)).round_sig_figs(6) for name in classes).rename(named)
    return rounded.insert_column(1, best)
