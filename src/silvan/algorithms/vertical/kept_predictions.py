"""Predictions that stay with the label holder: it writes them beside its ids, and the coordinator is told how many.

The coordinator has scores by keyed digests of ids, or, where only the label holder knows what leaves are worth, just
the leaves. It sends them to the label holder, which finds its rows for the digests.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import rows_blob
from silvan.algorithms.vertical.prediction import own_answer
from silvan.data.schema import Label
from silvan.errors import FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.forest.model_in_shares import ModelInShares
from silvan.privacy.identity.identity import places_of
from silvan.util.cell_text import cell_text
from silvan.util.csv_text import csv_text
from silvan.util.files import write_whole

_BYTES = 1 << 26
"""Predictions that take more are sent in several messages, of which each becomes a file."""

_MOST_PARTS = 10_000

# -- messages


class PredictionsKept(Reply, frozen=True, kw_only=True):
    """How many predictions the party has written down; they stay with it."""

    rows: int


class KeepPredictions(Ask[PredictionsKept], frozen=True, kw_only=True):
    """Write predictions down beside the ids of rows, in the party's own folder."""

    model: str
    rows: Blob
    label: Label
    part: int
    scores: np.ndarray | UnsetType = UNSET  # (rows, outputs)
    decided: np.ndarray | UnsetType = UNSET  # the class of each row, where it need not be that of the highest score
    leaves: np.ndarray | UnsetType = UNSET  # (rows, trees), where only the label holder knows what they are worth
    weights: np.ndarray | UnsetType = UNSET  # of the trees
    votes: bool = False  # with leaves: whether trees vote for a class
    threshold: float | UnsetType = UNSET  # with leaves: from which score on the second of two classes is decided on


# -- at the label holder


@answers(KeepPredictions)
def write_predictions(site: Site, request: KeepPredictions) -> PredictionsKept:
    """Write ids with predictions to the party's own folder, in the order of its table."""
    party = party_of(site)
    if party.predictions is None:
        raise RefusedError("the party takes no predictions in this study")
    party.check_model(request.model)
    if not 0 <= request.part < _MOST_PARTS:
        raise FormatError("there is no such part")
    label, places = named_label(party, request.label), places_of(party, request.rows)
    if (places < 0).any():
        raise RefusedError("the party lacks some of the rows")
    scores, decided = _scores(party, request, len(places), len(label.classes or (0,)))
    order = np.argsort(places)
    ids = party.frame[party.id_column].to_list()
    head, cells = _columns(label, scores[order], decided[order])
    table = [[party.id_column, *head], *([ids[place], *row] for place, row in zip(places[order], cells, strict=True))]
    path = _file(party.predictions, request.part)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, csv_text(table).encode())
    path.chmod(0o600)
    return PredictionsKept(rows=len(places))


def _file(path: Path, part: int) -> Path:
    return path if not part else path.with_name(f"{path.stem}-{part + 1}{path.suffix}")


def _scores(party: Party, request: KeepPredictions, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of rows, and the class of each: as they were sent, or by the party's own leaf values."""
    scores, decided, leaves, weights = request.scores, request.decided, request.leaves, request.weights
    if not isinstance(leaves, UnsetType) and not isinstance(weights, UnsetType):
        scores, decided = own_answer(party, request.model, leaves, weights, request.votes, request.threshold)
    if isinstance(scores, UnsetType) or scores.shape != (n, width) or scores.dtype != np.float64:
        raise FormatError("the scores do not match the rows")
    if not np.isfinite(scores).all():
        raise FormatError("the scores are no numbers")
    if isinstance(decided, UnsetType):
        decided = scores.argmax(axis=1)
    if decided.shape != (n,) or decided.dtype != np.int64 or ((decided < 0) | (decided >= width)).any():
        raise FormatError("the decisions do not match the rows")
    return scores, decided


def _columns(label: Label, scores: np.ndarray, decided: np.ndarray) -> tuple[list[str], list[list[Any]]]:
    """Return the head and the cells of predictions: numbers, or classes and the probability of each."""
    if label.classes is None:
        return ["prediction"], [[repr(float(value))] for value in scores[:, 0]]
    names = [cell_text(name) for name in label.classes]
    cells = [[names[code], *(f"{p:.6g}" for p in row)] for code, row in zip(decided, scores, strict=True)]
    return ["prediction", *(f"probability_{name}" for name in names)], cells


# -- at the coordinator


def keep_predictions(federation: Federation, model: ModelInShares, digests: np.ndarray, **found: Any) -> int:
    """Send the label holder what was found for each row, for it to keep; return for how many rows.

    ``found`` are fields of ``KeepPredictions``; arrays with a row for each digest are cut where they are too large.
    """
    holder, n = model.label_holder, len(digests)
    by_row = {name: value for name, value in found.items() if isinstance(value, np.ndarray) and len(value) == n}
    by_row.pop("weights", None)
    step = max(1, _BYTES * n // max(1, sum(value.nbytes for value in by_row.values())))

    def some(part: int) -> int:
        some = slice(part * step, (part + 1) * step)
        rows = digests[some]

        def check(site: str, reply: PredictionsKept) -> None:
            if reply.rows != len(rows):
                raise FormatError("it has kept other predictions than it was sent")

        cut = {name: value[some] for name, value in by_row.items()}
        request = KeepPredictions(
            model=model.model,
            rows=rows_blob(federation, rows),
            label=model.schema.label,
            part=part,
            **{**found, **cut},
        )
        reply: PredictionsKept = federation.ask(request, to=[holder], check=check)[holder]
        return reply.rows

    with federation.one_round():
        return sum(some(part) for part in range((n + step - 1) // step))
