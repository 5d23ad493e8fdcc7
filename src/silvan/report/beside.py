"""Reads what lies beside ``run.json``: the model, of which a tree is shown, and an audit, if it is of this model."""

from typing import Any

import msgspec

from silvan.errors import SilvanError
from silvan.report.tree_outline import outline
from silvan.study.run_folder import AUDIT, Record, Run
from silvan.util.files import try_json


class _Finding(msgspec.Struct, frozen=True):
    title: str
    verdict: str
    measure: str = ""
    note: str = ""
    value: float | None = None
    chance: float | None = None
    limit: float | None = None


class _Report(msgspec.Struct, frozen=True):
    name: str
    hash: str
    findings: list[_Finding] = []
    passed: bool = True


class _Audit(msgspec.Struct, frozen=True):
    reports: list[_Report]


def read_beside(run: Run, record: Record) -> dict[str, Any]:
    """Return what the files beside ``run.json`` add: ``tree``, ``audit``, and ``complaints`` about them."""
    complaints: list[str] = []
    return {"tree": _tree(run, record, complaints), "audit": _audit(run, record, complaints), "complaints": complaints}


def _tree(run: Run, record: Record, complaints: list[str]) -> dict[str, Any] | None:
    if record.by == "columns" or not record.models:
        return None
    first = record.models[0].site
    try:
        drawn = outline(run.forest(first or None))
    except (SilvanError, OSError) as error:
        complaints.append(f"The model could not be read, so no tree is shown: {error}")
        return None
    return None if drawn is None else drawn | {"site": first}


def _audit(run: Run, record: Record, complaints: list[str]) -> dict[str, Any] | None:
    """Return the findings of an audit of one of the run's models; of another model there are none."""
    path = run.file(AUDIT[0])
    if not path.is_file():
        return None
    audit = try_json(path, _Audit)
    if audit is None:
        complaints.append(f"{AUDIT[0]} beside this run is damaged, or no audit; it is left out.")
        return None
    reports = audit.reports
    hashes = {model.hash for model in record.models}
    other = [report.hash for report in reports if report.hash not in hashes]
    if other:
        complaints.append(
            f"{AUDIT[0]} beside this run is of another model ({other[0][:12]}) and is left out: "
            "run `silvan audit` again."
        )
    kept = [report for report in reports if report.hash in hashes]
    return {"reports": msgspec.to_builtins(kept)} if kept else None
