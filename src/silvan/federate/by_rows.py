"""Making a federation in this process: several tables, or one with a column that names the site."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import narwhals as nw
from sklearn.base import clone

from silvan.algorithms.bofrf.site_forest import is_unfitted, name_of, read_forest
from silvan.data.batches import read_size
from silvan.data.encode import Task
from silvan.data.schema import Schema
from silvan.data.table import Frame, read_table
from silvan.errors import InputError
from silvan.federation.agree import Differences, agree, ask_rows
from silvan.federation.federation import Sums
from silvan.federation.journal import Journal
from silvan.federation.signed import make_signers
from silvan.federation.site import Site
from silvan.federation.sums import Cover, TrustedSums
from silvan.federation.transports.in_process import LocalFederation
from silvan.privacy.gate.gate import Gate, Policy
from silvan.privacy.gate.site_folder import SiteFolder, make_folders
from silvan.privacy.noise.budget import Budget
from silvan.privacy.seal import public_key
from silvan.privacy.sums.masked_coordinator import MaskedSums
from silvan.privacy.sums.masked_site import MaskCover
from silvan.privacy.sums.ring import RingCover, RingSums
from silvan.tree.draw import make_key

SumsName = Literal["trusted", "ring", "masked"]


def federate_rows(
    tables: Any,
    *,
    site: str | None = None,
    label: str = "label",
    test: float = 0.0,
    random_state: int = 0,
    task: Task | None = None,
    schema: Schema | None = None,
    exclude: Sequence[str] = (),
    forests: Mapping[str, Any] | None = None,
    sums: SumsName = "trusted",
    policy: Policy | None = None,
    budgets: str | Path | None = None,
    ledgers: str | Path | None = None,
    signed: bool = False,
    cold: bool = False,
    quorum: int | None = None,
    timeout: float | None = None,
    journal: str | None = None,
    memory: int | str | None = None,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
) -> LocalFederation:
    """Make a federation of sites that hold different rows.

    Parameters
    ----------
    tables
        A dict of tables by site: data frames, paths, a ``Query`` or the URL of a table in a database, or (X, y);
        or one table and a column that names the site.
    site
        The column that names the site, if there is one table.
    label
        The column to predict.
    test
        Share of each site's rows kept for judging, drawn by class.
    random_state
        Decides the test part and which rows are in which tree.
    task
        "classification" or "regression"; None: regression if the label is floating point with fractions.
    schema
        What the columns mean, if it is agreed already; found by asking the sites otherwise.
    exclude
        Columns that are not features.
    forests
        Forests that sites bring, by site: a ``Forest``, the path of one, or a forest of scikit-learn, fitted or not.
        One that is fitted must not have seen the site's test part; one that is not learns from the training part.
    sums
        How ``total`` hides its parts: "trusted" (whoever adds sees them), "ring" or "masked" (nobody does; three
        sites or more).
    policy
        What every site lets out.
    budgets
        A folder where each site keeps a file of what it has spent of its privacy budget, for all studies; without one
        the books are as old as the federation.
    ledgers
        A folder where each site keeps a folder of its own, with its key, its ledger of all that left and the studies
        that were approved; without one the ledger is as old as the federation: ``fed.site(name).outbox.ledger``.
    signed
        Sign and check every message, with keys made for it or those in ``ledgers``, as between machines.
    cold
        Rebuild the site for every message, as if it had been restarted: slow, for tests.
    quorum, timeout
        How many sites must answer, and within how many seconds; None: all, any time.
    journal
        A file that keeps every reply, so that an interrupted study goes on where it stopped.
    memory
        How much of each site's rows may be in memory, such as "2GB"; the table is read in batches and the rest lies in
        files. None: all rows. The forest is the same.
    folder
        Where these files are; they have no names and are gone when the program ends. None: with temporary files.
    n_jobs
        Threads; None for all cores.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> fed.sites
    ['north', 'south']
    """
    if not 0.0 <= test < 1.0:
        raise InputError(f"test must be at least 0 and below 1, got {test}")
    if task not in (None, "classification", "regression"):
        raise InputError(f"task must be None, 'classification' or 'regression', got {task!r}")
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise InputError(f"random_state must be a whole number of at least 0, got {random_state!r}")
    if isinstance(exclude, str):
        raise InputError(f"exclude must be a list of columns, got {exclude!r}")
    room = None if memory is None else read_size(memory)
    parts = _parts(tables, site)
    brought = _forests(forests, parts)
    policy = Policy() if policy is None else policy
    kept, folders = Journal(journal), make_folders(ledgers, parts)
    stores = {name: kept.store(name) for name in parts}
    seals = {name: public_key(store) for name, store in stores.items()} if signed else None
    keys = {name: folder.key for name, folder in folders.items()}
    signer, signers = make_signers(list(parts), keys, seals) if signed else (None, {})
    adding, cover = make_sums(sums, seals)
    members = {
        name: Site(
            name,
            source,
            store=stores[name],
            label=label,
            exclude=tuple(exclude),
            test=test,
            split_seed=int(random_state),
            sampling_key=make_key(random_state, "rows"),
            outbox=make_gate(policy, folders.get(name), _budget(policy, budgets, name)),
            cover=cover,
            signer=signers.get(name),
            n_jobs=n_jobs,
            forest=brought.get(name),
            memory=room,
            folder=folder,
        )
        for name, source in parts.items()
    }
    study = f"rows of {', '.join(members)}; label {label}; test {test}; random_state {random_state}"
    federation = LocalFederation(
        members,
        adding,
        cold=cold,
        quorum=quorum,
        timeout=timeout,
        journal=kept,
        study=study,
        signer=signer,
    )
    if journal is not None:
        prints = [_fingerprint(member) for member in members.values()]
        named = "".join(f"; {name} brings {name_of(forest)}" for name, forest in brought.items())
        federation.journal.belongs_to(
            f"{study}; exclude {list(exclude)}; policy {policy}; sums {sums}; tables {prints}{named}"
        )

    def settle() -> None:
        if schema is None:
            federation.schema, federation.differences, federation.rows = agree(federation, label, task)
            for text in federation.differences.warnings:
                warnings.warn(text, stacklevel=3)
        else:
            federation.schema, federation.differences, federation.agreed = schema, Differences(), False
            federation.rows = ask_rows(federation) if policy.tells("CountRows") else {}
        _check_excluded(exclude, federation.members)

    if policy.approve:
        federation.agree_later(settle)
    else:
        settle()
    return federation


def make_gate(policy: Policy, folder: SiteFolder | None, budget: Budget | None = None) -> Gate:
    """Make a site's outbox, in memory or in the site's folder."""
    if folder is None:
        return Gate(policy, budget)
    return Gate(policy, budget, folder.ledger, folder.approvals)


def _budget(policy: Policy, folder: str | Path | None, site: str) -> Budget:
    if folder is None:
        return Budget(policy.epsilon)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Budget(policy.epsilon, Path(folder) / f"{quote(site, safe=' ')}.sqlite", site)


def _fingerprint(site: Site) -> str:
    """Name a site's table by its content."""
    try:
        return site.fingerprint()
    except Exception:  # whatever it is, the site says it better when it is asked
        return ""


def _check_excluded(exclude: Sequence[str], members: Mapping[str, Site]) -> None:
    """Refuse a misspelt column, which would be learnt from."""
    unknown = [name for name in exclude if not any(name in member.excluded for member in members.values())]
    if unknown:
        raise InputError(f"exclude names {unknown[0]!r}, which is not a column at any site")


def make_sums(name: str, seals: Mapping[str, bytes] | None = None) -> tuple[Sums, Cover | None]:
    """Give both halves of the way of summing that a user named: the coordinator's, and what hides a site's part.

    ``seals`` are the keys by which sites know each other, if they do not take the coordinator's word for them.
    """
    if name == "trusted":
        return TrustedSums(), None
    if name == "ring":
        return RingSums(), RingCover(seals)
    if name == "masked":
        return MaskedSums(), MaskCover(seals)
    raise InputError(f"sums must be 'trusted', 'ring' or 'masked', got {name!r}")


def _forests(forests: Mapping[str, Any] | None, sites: Mapping[str, Any]) -> dict[str, Any]:
    """Check forests that sites bring, where what is wrong can be mended."""
    if forests is not None and not isinstance(forests, Mapping):
        raise InputError(f"forests must be a dict of forests by site, got {type(forests).__name__}")
    brought = {str(name): forest for name, forest in (forests or {}).items()}
    for name, forest in brought.items():
        if name not in sites:
            raise InputError(f"forests names {name!r}, which is not a site; the sites are {', '.join(sites)}")
        # a copy, since an estimator may be fitted elsewhere later
        brought[name] = clone(forest) if is_unfitted(forest) else read_forest(forest)
    return brought


def _parts(tables: Any, site: str | None) -> dict[str, Any]:
    if isinstance(tables, Mapping):
        if site is not None:
            raise InputError("site names a column of one table; with a dict of tables leave it out")
        if not tables:
            raise InputError("tables is empty; a federation needs at least one site")
        if len({str(name) for name in tables}) < len(tables):
            raise InputError("two sites have names that read alike; give every site a name of its own")
        return {str(name): table for name, table in tables.items()}
    if site is None:
        raise InputError("pass a dict of tables by site, or one table and site='the column that names it'")
    frame = read_table(tables)
    if site not in frame.columns:
        raise InputError(f"the table has no column {site!r} to tell sites apart")
    if frame[site].null_count():
        raise InputError(f"column {site!r} is missing in {frame[site].null_count()} rows; every row needs a site")
    return {str(name): _rows_of(frame, site, name) for name in frame[site].unique(maintain_order=True).to_list()}


def _rows_of(frame: Frame, site: str, name: Any) -> Any:
    return frame.filter(nw.col(site) == name).drop(site).to_native()
