"""Encoded labels: classes by secret numbers, or numbers with a secret sign, scale and origin.

The label holder renumbers the classes by a permutation that it alone knows, or writes numbers in fixed point with a
secret sign, and seals them for the parties, so the coordinator cannot read them. Neither changes the gain of a split,
so the trees are the same. This hides little from parties: they see which rows share a class, and with two classes the
rarer one is soon guessed (see docs/vertical.md).

Labels that other parties use, encoded or encrypted (``encrypted_labels.py``), are signed by the party that holds them,
for the rows and the task: a coordinator cannot make parties compute on its own labels, or under its own key.
"""

from dataclasses import replace
from typing import ClassVar, TypeVar

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.shared_bins import label_counts
from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import encode_labels
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import Agreed, Ask, Blob, Fixed, SignedReply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.tree.fit import Settings
from silvan.tree.objectives import MAX_CLASSES, OBJECTIVES, Measure

# -- messages


class LabelsForParties(SignedReply, frozen=True, kw_only=True):
    """The label of every row in the form sent to parties: encoded or encrypted."""

    labels: bytes
    turned: bool | None = None  # whether a code reverses the order; disclosed if trees must be monotonic

    def work(self) -> bytes:
        """Return the signed content: the labels, and the data needed to compute on them."""
        return self.labels


class LabelsOfRows(msgspec.Struct, frozen=True):
    """The labels of some rows, as their holder signs them."""

    rows: str  # hash of their digests


class CodedLabels(LabelsOfRows, frozen=True):
    """Labels in code, sealed for the parties, and how splits are to be measured by them."""

    measure: Measure
    sealed: bytes


L = TypeVar("L", bound=LabelsOfRows)


class PrepareLabels(Ask[LabelsForParties], frozen=True, kw_only=True):
    """A request for the labels, to the label holder."""

    once: ClassVar[bool] = True  # a forest has the labels of one set of rows

    rows: Agreed[Blob]
    label: Agreed[Label]
    settings: Fixed[Settings]

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the party's policy checks."""
        return self.settings.min_samples_leaf


class EncodeLabels(PrepareLabels, frozen=True, kw_only=True):
    """The label of every row, in a code that only the label holder can undo, for the other parties."""

    turned: Fixed[bool]  # whether to tell if the code turns the order round


class LeafCode(msgspec.Struct, frozen=True):
    """The label holder's input for leaf values: the label, class weights and the leaves' encoded statistics."""

    label: Label
    class_weight: str | list[float] | None
    stats: np.ndarray


class SealedLabels(msgspec.Struct, frozen=True):
    """What is sealed: one class code or fixed-point number per row."""

    target: np.ndarray


# -- at the label holder


def measured(party: Party, rows: Blob, label: Label, settings: Settings) -> tuple[np.ndarray, Measure]:
    """Return the label of every row, and its measure as if all rows were in one place."""
    check_objective(settings)
    schema = Schema((), label)
    y = encode_labels(party, named_label(party, label), rows)
    return y, settings.measure(schema, label_counts(y, schema))


def _permutation(party: Party, rows: Blob, n: int) -> np.ndarray:
    """Return the secret number of each class, always the same for the same rows."""
    words = [party.secret_for(f"class {code} of rows {rows.hash}") for code in range(n)]
    return np.argsort(np.argsort(np.array(words, object)))


def _sign(party: Party, rows: Blob) -> int:
    """Return the secret sign of a number, 1 or -1, always the same for the same rows."""
    return 1 - 2 * (party.secret_for(f"sign of rows {rows.hash}")[0] & 1)


@answers(EncodeLabels)
def encode(site: Site, request: EncodeLabels) -> LabelsForParties:
    """Encode the label of every row."""
    party = party_of(site)
    y, measure = measured(party, request.rows, request.label, request.settings)
    if measure.counts_rows:
        code = _permutation(party, request.rows, measure.n_stats)
        turned = bool(code[0] > code[-1])
        target = code[y].astype(np.uint16)
        weight = np.array(measure.class_weight)[np.argsort(code)]
        shown = msgspec.structs.replace(measure, class_weight=tuple(weight.tolist()))
    else:
        turned = _sign(party, request.rows) < 0
        target = _sign(party, request.rows) * measure.to_integers(y)
        shown = msgspec.structs.replace(measure, offset=0.0, scale=1.0)
    sealed = seal(party.key_for("labels"), wire.encode(SealedLabels(target)))
    labels = wire.encode(CodedLabels(request.rows.hash, shown, sealed))
    return LabelsForParties(labels=labels, turned=turned if request.turned else None)


def decode_leaves(party: Party, rows: Blob, settings: Settings, leaves: LeafCode) -> np.ndarray:
    """Return leaf values, given the leaves' statistics in code."""
    stats = leaves.stats
    _, measure = measured(party, rows, leaves.label, replace(settings, class_weight=leaves.class_weight))
    check_arrays("the statistics of the leaves do not match", (stats, (*stats.shape[:1], measure.n_stats), np.int64))
    if measure.counts_rows:
        return measure.leaf_values(stats[:, _permutation(party, rows, measure.n_stats)])
    return measure.leaf_values(stats * [1, _sign(party, rows)])


# -- at every party


def check_objective(settings: Settings) -> None:
    """Raise ``FormatError`` for an objective that kernels do not know: codes might change its gains."""
    reject(not settings.objective.compiled, "the trees have an objective that vertical forests do not support")


def check_signed(party: Party, labels: Blob) -> None:
    """Refuse labels unless the party that holds them signed them for the task at hand; it takes no others' itself."""
    signers = {owner.site for owner in party.owners(labels.hash) if owner.task == party.task}
    holder = party.name if party.has_label else party.label_holder
    if not (signers if holder is None else holder in signers):
        raise RefusedError("the labels are not signed, for this task, by the party that holds them")


def read_labels(party: Party, blob: Blob, rows: Blob, kind: type[L]) -> L:
    """Read the label holder's signed labels, and check that they belong to these rows."""
    labels = wire.decode(party.blob(blob.hash), kind)
    reject(labels.rows != rows.hash, "the labels are of other rows")
    return labels


def open_labels(party: Party, blob: Blob, rows: Blob, n_rows: int) -> tuple[np.ndarray, Measure]:
    """Unseal and check the encoded labels; return them in the layout that histograms take, and their measure."""
    labels = read_labels(party, blob, rows, CodedLabels)
    check_measure(labels.measure)
    target = wire.decode(unseal(party.key_for("labels"), labels.sealed, LABEL_HOLDER), SealedLabels).target
    counts_rows = labels.measure.counts_rows
    check_arrays("the labels are not as many as the rows", (target, (n_rows,), np.uint16 if counts_rows else np.int64))
    if not counts_rows:
        return np.stack([np.ones(n_rows, np.int64), target], axis=1), labels.measure
    reject(target.max(initial=0) >= labels.measure.n_stats, "a label is of no class")
    return target, labels.measure


def check_measure(measure: Measure, n_classes: int | None = None) -> None:
    """Raise ``FormatError`` for statistics that are neither those of classes nor those of a number."""
    n, objective = len(measure.class_weight), OBJECTIVES.get(measure.objective)
    fits = objective is not None and measure.fits(n if objective.for_classes else 0)
    fits = fits and (measure.offset, measure.scale) == (0.0, 0.0 if measure.counts_rows else 1.0)
    if (
        not fits
        or not 1 <= n <= MAX_CLASSES
        or not 0 <= measure.mass < 1 << 62
        or not all(0 < w < 1 << 32 for w in measure.class_weight)
    ):
        raise FormatError("the statistics are not those of a label")
    reject(n_classes is not None and (n_classes or 1) != n, "the statistics are not those of the label")
