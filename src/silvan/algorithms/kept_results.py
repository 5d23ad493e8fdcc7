"""The results of a finished study at a site: the model and the site's own metrics, signed by the coordinator.

A site receives data and renders its report itself, so it never opens a page from elsewhere. A model that the site made
with its own rows, which nobody else has, is in the folder before the results arrive.
"""

from pathlib import Path
from typing import ClassVar

import msgspec

from silvan.errors import FormatError, RefusedError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Derived, Reply
from silvan.federation.signed import is_by_coordinator
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.forest import Forest
from silvan.util.files import write_whole

RECORD, MODEL, OWN_MODEL, SIGNATURE = "run.json", "model.silvan", "model-own.silvan", "signature"
"""Files of results: the site's copy of the record, the shared model, the site's model, the coordinator's signature."""

MADE_MODEL = "model-made-here.silvan"
"""The site's personal forest, if there is one: a file that no message can write."""

_TASK = "results"


# -- messages
class ResultsKept(Reply, frozen=True, kw_only=True):
    """Confirmation that the results are stored."""


class KeepResults(Ask[ResultsKept], frozen=True, kw_only=True):
    """Keep the finished model and the metrics sent to this site, in the site's folder."""

    of_rows: ClassVar[bool] = False
    after_close: ClassVar[bool] = True

    record: Derived[bytes]  # the site's copy of the record of the run, as JSON
    models: Derived[dict[str, bytes]]  # files by name
    signature: Derived[bytes] = b""  # the coordinator's, of all of it

    def name_for(self, site: str) -> str:
        """Return a digest of all results for a site."""
        files = {RECORD: self.record, **self.models}
        return digest(msgspec.json.encode([site, sorted((name, digest(data)) for name, data in files.items())]))


# -- at a site
@answers(KeepResults)
def keep_results(site: Site, request: KeepResults) -> ResultsKept:
    """Check the signature and the models, and write all of it to the site's folder."""
    folder, keys = site.results, site.keys
    if folder is None or keys is None:
        raise RefusedError("the site does not accept results of this study")
    check_signature(keys.roster.coordinator, site.study, site.name, request)
    reject(not set(request.models) <= {MODEL, OWN_MODEL}, "results have other files")
    for data in request.models.values():
        Forest.from_bytes(data)
    _write(folder, {**request.models, SIGNATURE: request.signature, RECORD: request.record})
    return ResultsKept()


def keep_made_model(folder: Path, made: Forest) -> None:
    """Store the forest that a site made with its rows in the folder for the study's results."""
    _write(folder, {MADE_MODEL: made.to_bytes()})


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in files.items():
        write_whole(folder / name, data)
        (folder / name).chmod(0o600)


def check_signature(coordinator: bytes, study: str, site: str, results: KeepResults) -> None:
    """Raise ``FormatError`` unless the coordinator with this public key signed the results for a study and site."""
    if not is_by_coordinator(coordinator, study, _TASK, results.name_for(site), results.signature):
        raise FormatError("the results are not signed by the coordinator that the site knows")


# -- at the coordinator
def send(federation: Federation, site: str, results: KeepResults) -> None:
    """Sign results for a site, and send them."""
    if federation.signer is None:
        raise RefusedError("results are sent over signed messages only")
    signature = federation.signer.sign_work(federation.study, _TASK, results.name_for(site))
    federation.ask(msgspec.structs.replace(results, signature=signature), to=[site])
