"""The rows that a site brings to a study: they stay the same from its first reply to its last, or the study stops.

A site remembers a keyed fingerprint of its table when its owner approves a study, or when it first answers one that
needs no approval. If the table is another one when a job begins, after a nightly refresh, say, the site takes no part
and says so. A frozen table
is a copy of the rows in the site's own folder, which the study goes on with.
"""

import hmac
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from silvan.data.batches import Batched, read_size
from silvan.data.hospital.cohort_rows import NEEDS_HOSPITAL, CohortRows
from silvan.data.partition_files import Partitions
from silvan.data.readers.query import Query
from silvan.data.readers.table_file import Table, as_table
from silvan.data.table import read_table
from silvan.deploy.membership.site_files import SiteFiles, source_of
from silvan.errors import FederationError, InputError, SilvanError
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.privacy.identity.seal import derive, secret_key
from silvan.study.study import Study
from silvan.util.files import keep_private

FROZEN = "frozen"
"""The folder of frozen tables in a site's folder."""


class ChangedTableError(FederationError):
    """A site's table differs from the one at the start of the study."""


def study_source(member: SiteFiles, study: Study) -> Any:
    """Return the source of a site's rows for a study: its table, or the frozen copy."""
    frozen = frozen_file(member, study)
    if frozen is not None:
        keep_private(frozen)
    if frozen is None and member.settings.get("freeze") and member.store.get(_key(study)) is None:
        frozen = freeze(member, study)
    if frozen is None:
        return _own_source(member, study)
    own = _own_source(member, study)
    return replace(own, path=str(frozen)) if isinstance(own, Table) else str(frozen)


def table_settings(member: SiteFiles, study: Study, n_jobs: int | None = None) -> SiteSettings:
    """Return how a site's table is read and split for a study."""
    memory = member.settings.get("memory")
    results = member.results_folder(study)
    if study.by_columns:  # parties have their columns in memory, and one of them splits the rows for all
        return SiteSettings(label=study.label, exclude=study.exclude, n_jobs=n_jobs, kinds=study.kinds, results=results)
    room = None if memory is None else read_size(memory)
    own: dict[str, Any] = {
        "n_jobs": n_jobs,
        "device": member.settings.get("device", "auto"),
        "memory": room,
        "folder": member.path,
        "results": results,
    }
    own |= {"schema": study.schema, "kinds": study.kinds, "naming": "proven", "published": not study.secret}
    own |= {"date_split": study.date_split, "group": study.group, "event": study.event}
    if study.private or member.policy.epsilon is not None:
        own["test_key"] = derive(secret_key(member.store).private_bytes_raw(), b"rows for judging", 32)
    return SiteSettings.of_study(study.label, study.exclude, study.test, study.random_state, **own)


def fold_key(member: SiteFiles, study: Study) -> bytes:
    """Return the site's secret for assigning the rows of a study to folds."""
    return derive(secret_key(member.store).private_bytes_raw(), f"folds of {study.unique_name}".encode(), 32)


def check_study_table(member: SiteFiles, study: Study, table: SiteTable) -> None:
    """Record a site's table for a starting study; raise ``FederationError`` if another one is recorded.

    It is a ``ChangedTableError`` if the study has begun with the other one.
    """
    found, known = _fingerprint(member, study, table), member.store.get(_key(study))
    if known is not None and not hmac.compare_digest(known, found):
        if _has_begun(member, study):
            raise ChangedTableError(
                "its table has changed since the study began; its owner can put the old rows back, or begin the study "
                "anew and freeze them (`silvan site freeze`)"
            )
        raise FederationError(
            "its table has changed since its owner approved the study; its owner can approve it again, and freeze the "
            "rows (`silvan site freeze`)"
        )
    member.store.put_all({_key(study): found, _begun_key(study): b"1"})


def remember_table(member: SiteFiles, study: Study, reasons: bool = True) -> str:
    """Record a site's table for a study that its owner approves; return notes for the owner.

    With ``reasons`` these include why a table cannot be read, which may quote a cell.
    """
    try:
        table = SiteTable(member.name, study_source(member, study), table_settings(member, study))
        found = _fingerprint(member, study, table)
    except (SilvanError, OSError) as error:
        why = f" ({error})" if reasons else ""
        return f"Its table cannot be read from here{why}, and is remembered when the study begins."
    known = member.store.get(_key(study))
    if known is not None and _has_begun(member, study):
        if hmac.compare_digest(known, found):
            return "The study has begun, with the table as it is now."
        return (
            "The table has changed since the study began: the site takes no part until the old rows are back. To go on "
            "with new rows, the study must begin anew, under another name."
        )
    member.store.put(_key(study), found)
    if frozen_file(member, study) is not None:
        return "The study is answered from the frozen copy of the table, and no other rows."
    return (
        "The study is answered from the table as it is now. If it changes before the study is over, the site takes no "
        "part any more; `silvan site freeze` keeps these rows for it."
    )


def freeze(member: SiteFiles, study: Study) -> Path:
    """Copy a site's table into its folder, for one study; return the copy."""
    known = frozen_file(member, study)
    if known is not None:
        raise InputError(f"{known}: the rows of this study are frozen already")
    source, folder = _own_source(member, study), member.path / FROZEN
    if isinstance(source, Partitions):
        raise InputError("the files of a Dask cluster are not copied into the site's folder; leave them as they are")
    folder.mkdir(mode=0o700, exist_ok=True)
    if isinstance(source, Query | CohortRows):
        path = folder / f"{study.digest}.parquet"
        memory = member.settings.get("memory")
        with tempfile.TemporaryDirectory(prefix=".pieces-", dir=folder) as pieces:
            _write_private(path, lambda copy: _copy_query(source, memory, Path(pieces), copy))
    else:
        own = as_table(source)
        assert own is not None  # noqa: S101
        path = folder / f"{study.digest}{''.join(own.file.suffixes[-2:])}"
        _write_private(path, lambda copy: shutil.copyfile(own.file, copy))
    return path


def _copy_query(query: Query | CohortRows, memory: str | None, pieces: Path, copy: Path) -> None:
    """Write a database's result to a file, in pieces if there is a limit."""
    if memory is None:
        pl.DataFrame(read_table(query).to_native()).write_parquet(copy)
        return
    for i, frame in enumerate(Batched(query, "label", read_size(memory) // 4, pieces).batches()):
        pl.DataFrame(frame.to_native()).write_parquet(pieces / f"{i:08}.parquet")
    pl.scan_parquet(pieces / "*.parquet").sink_parquet(copy)


def thaw(member: SiteFiles, study: Study) -> bool:
    """Remove the frozen copy of a study's rows; return whether there was one."""
    known = frozen_file(member, study)
    if known is not None:
        known.unlink()
    return known is not None


def frozen_file(member: SiteFiles, study: Study) -> Path | None:
    """Return the frozen copy of a study's rows, if there is one."""
    found = [path for path in (member.path / FROZEN).glob(f"{study.digest}.*") if path.suffix != _HALF]
    return found[0] if found else None


_HALF = ".half"


def _write_private(path: Path, write: Any) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    half = path.with_name(path.name + _HALF)
    half.unlink(missing_ok=True)
    os.close(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    write(half)
    half.replace(path)


def _own_source(member: SiteFiles, study: Study) -> Any:
    settings = member.settings
    if study.predict is not None and "predict" in settings:
        return source_of(settings["predict"], None, settings.get("reading"))
    source = member.source()
    if isinstance(source, CohortRows):
        return replace(source, plan=study.cohort_plan)
    if study.cohort is not None:
        raise InputError(NEEDS_HOSPITAL)
    return source


def _fingerprint(member: SiteFiles, study: Study, table: SiteTable) -> bytes:
    """Return a digest of a table that reveals nothing without the site's key."""
    secret = secret_key(member.store).private_bytes_raw()
    return hmac.digest(secret, f"{study.unique_name}\0{table.fingerprint()}".encode(), "sha256")


def _has_begun(member: SiteFiles, study: Study) -> bool:
    return member.store.get(_begun_key(study)) is not None


def _begun_key(study: Study) -> str:
    return f"begun study {study.unique_name}"


def _key(study: Study) -> str:
    return f"table of study {study.unique_name}"
