"""What models of columns have in common: what they ask of parties, predictions as frames of ids, and their files.

A saved model is a folder with the coordinator's part, and every party's share in a file of its own.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from sklearn.base import BaseEstimator

from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.in_one_place import id_column, list_rows
from silvan.algorithms.vertical.kept_shares import Writable
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.privacy.announce import Questions
from silvan.privacy.identity.identity import all_digests, find_digests
from silvan.util.files import UNREADABLE, file_name, write_whole

if TYPE_CHECKING:
    import polars as pl

_PARAMETERS, _SHARE = "parameters.json", ".share.silvan"

T = TypeVar("T")


def asked_of_parties(
    learner: BaseEstimator, kinds: tuple[type[Request], ...], tasks: int = 1, min_leaf: int | None = None
) -> Questions:
    """Return what a learner is about to ask of parties, for an announcement."""
    settings = repr([type(learner).__name__, sorted(learner.get_params(deep=False).items(), key=str)])
    return Questions(kinds, min_leaf=min_leaf, settings=settings, tasks=tasks)


class ScoredRows(NamedTuple):
    """Rows by id, in the order of the first party's table, and their scores."""

    frame: "pl.DataFrame"
    scores: np.ndarray
    lacking: dict[str, int]  # rows that a party lacks

    def with_answers(self, answers: dict[str, Any]) -> "pl.DataFrame":
        """Return the data frame with columns of answers after the ids."""
        import polars as pl

        clash = [name for name in answers if name in self.frame.columns]
        if clash:
            raise InputError(f"the id column is called {clash[0]!r}, like an answer; rename it")
        return pl.concat([self.frame[:, :1], pl.DataFrame(answers), self.frame[:, 1:]], how="horizontal")


def score_by_id(
    federation: Federation, score: Callable[[np.ndarray], np.ndarray], incomplete: bool = False
) -> ScoredRows:
    """Score the rows in common, or all rows that any party has, by their digests."""
    import polars as pl

    columns = columns_of(federation)
    digests, lacking, counts = columns.common, {}, {}
    if incomplete:
        if columns.known is None:
            raise InputError("incomplete=True needs match='keyed': with 'psi' nobody knows the rows not in common")
        digests = all_digests(columns.known)
        absent = {party: find_digests(known, digests) < 0 for party, known in columns.known.items()}
        counts = {party: int(rows.sum()) for party, rows in absent.items()}
        lacking = {"lacking": [", ".join(p for p, rows in absent.items() if rows[i]) for i in range(len(digests))]}
    scores = score(digests)
    if not federation.local_sites:
        named = {"row": [row.tobytes().hex() for row in digests.astype(">u8")]}
        return ScoredRows(pl.DataFrame({**named, **lacking}), scores, counts)
    order, ids = list_rows(federation, digests)
    frame = pl.DataFrame({id_column(federation): ids, **{k: [v[i] for i in order] for k, v in lacking.items()}})
    return ScoredRows(frame, scores[order], counts)


# -- files


def write_model(
    folder: str | Path, name: str, model: Writable, shares: Mapping[str, Writable], parameters: dict[str, Any]
) -> None:
    """Write all shares that are known here, the parameters and, last, the model: an unfinished folder has none."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for party, share in shares.items():
        write_whole(share_file(folder, party), share.to_bytes())
    write_whole(folder / _PARAMETERS, msgspec.json.encode(parameters))
    write_whole(folder / name, model.to_bytes())


def share_file(folder: str | Path, party: str) -> Path:
    """Return the path of a party's share."""
    return Path(folder) / (file_name(party) + _SHARE)


def read_part(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a file; errors begin with its path."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; is {str(path.parent)!r} a saved model?")
    try:
        return read(path.read_bytes())
    except (FormatError, *UNREADABLE) as error:
        kind = type(error) if isinstance(error, FormatError) else FormatError
        raise kind(f"{path}: {error}") from None


def read_parameters(folder: str | Path, make: type[T]) -> T:
    """Make a learner with the parameters that were written."""
    path = Path(folder) / _PARAMETERS
    parameters = read_part(path, lambda data: msgspec.json.decode(data, type=dict[str, Any]))
    try:
        return make(**parameters)
    except TypeError:
        raise FormatError(f"{path}: not the parameters of {make.__name__}") from None
