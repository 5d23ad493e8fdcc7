"""Rollback: an earlier copy of some of a site's files, or no file, replaces the current ones.

A site replies to two noisy requests. Then somebody with access to its disk restores the state after the first, file by
file, and starts it again. A restored budget has less spent, a ledger forgets what left, a store forgets requests. All
files together cannot be distinguished from a site with fewer replies; a digest noted elsewhere can (docs/ledger.md).
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
from experiments.attacks.outcome import Outcome

from silvan.algorithms.private.table_counts import CountPeople
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.site import Site
from silvan.federation.store import FileStore, digest
from silvan.privacy.gate import Gate
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import SiteFolder

FILES = {
    "budget": ("budget.sqlite",),
    "ledger": ("ledger.jsonl", "ledger.head"),
    "store": ("store.sqlite",),
    "budget and ledger": ("budget.sqlite", "ledger.jsonl", "ledger.head"),
    "budget and store": ("budget.sqlite", "store.sqlite"),
    "ledger and store": ("ledger.jsonl", "ledger.head", "store.sqlite"),
}


def run(small: bool) -> list[Outcome]:
    """Restore, or delete, each of a site's files; check whether the site continues to reply."""
    ways: dict[str, Callable[[Path, Path], object]] = {
        "restored": lambda file, copy: shutil.copy(copy, file),
        "deleted": lambda file, copy: file.unlink(),
    }
    return [_outcome(what, way, ways[way]) for what in FILES for way in ways]


def _outcome(what: str, way: str, change: Callable[[Path, Path], object]) -> Outcome:
    target = f"1 site that continues to reply, {what} {way}"
    with tempfile.TemporaryDirectory() as made:
        folder, copy = Path(made) / "site", Path(made) / "copy"
        ask(folder, 0.25)
        shutil.copytree(folder, copy)
        ask(folder, 0.75)
        for name in FILES[what]:
            change(folder / name, copy / name)
        try:
            return Outcome(target, "1", float(ask(folder, 0.5)))
        except FormatError as error:
            return Outcome(target, "1", 0, note=str(error).split(": ", 1)[1].split(". ")[0])


def ask(folder: Path, epsilon: float) -> bool:
    """Start a site from its folder, and request a noisy count; return whether it replies."""
    files, store = SiteFolder(folder), FileStore(_made(folder) / "store.sqlite")
    budget = Budget(3.0, folder / "budget.sqlite", "north")
    try:
        gate = Gate(Policy(epsilon=3.0), budget, files.ledger, files.approvals, store=store)
        table = pl.DataFrame({"age": range(40), "label": [0, 1] * 20})
        site = Site("north", table, store=store, outbox=gate, n_jobs=1)
        body = wire.encode(CountPeople(epsilon=epsilon))
        envelope = Envelope("study", digest(body), "", "CountPeople", body, over=["north"], task=str(epsilon))
        return wire.decode(site.receive(wire.encode(envelope), "total"), Envelope).kind != "Trouble"
    finally:
        budget.close()
        store.close()


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
