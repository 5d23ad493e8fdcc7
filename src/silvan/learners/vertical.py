"""The vertical learner: a forest of columns that stay where they are."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

import msgspec
import numpy as np

from silvan.algorithms import vertical, vertical_encrypted
from silvan.algorithms.columns import ColumnFederation, Columns
from silvan.algorithms.figures import FEDERATED, Row
from silvan.algorithms.vertical_judge import judge
from silvan.algorithms.vertical_predict import find_leaves, find_leaves_classically, score_leaves
from silvan.algorithms.vertical_shares import hand_out, share_of, show_shares
from silvan.errors import FormatError, InputError
from silvan.federation.federation import OVERALL, Federation
from silvan.files import write_whole
from silvan.learners.base import Learner, _frame
from silvan.privacy.identity import find_digests, in_any
from silvan.tree.fit import Settings
from silvan.tree.forest import Forest
from silvan.tree.shares import Share, Structure, put_together

if TYPE_CHECKING:
    import polars as pl

Method = Literal["one round", "classical"]

_STRUCTURE, _PARAMETERS, _SHARE = "structure.silvan", "parameters.json", ".share.silvan"


class _InShares:
    """What is there after ``fit``; not parameters, so not fields of the dataclass below."""

    structure_: Structure
    shares_: dict[str, Share]  # of the parties whose shares are known here
    lacking_: dict[str, int]  # rows that a party lacked in the last prediction


@dataclass(repr=False, eq=False)
class VerticalForest(Learner, _InShares):
    """A forest of columns that stay with their parties: exactly the one that a joined table would give.

    Parameters are those of ``ForestClassifier`` (``criterion`` None: gini or squared error, as the label is), with
    ``max_depth=10`` by default, since a level is two rounds.

    Parameters
    ----------
    labels
        "encoded": the label holder sends the label once, classes under secret numbers, for all parties to read.
        "encrypted": it sends ciphertexts that only it can read the sums of (needs ``silvan[vertical]``); a level takes
        three rounds. What partitions tell about labels stays: set ``min_samples_leaf`` to 20 or more.
    auditor
        Have every party show its splits to the coordinator, who then has the whole forest.
    key_bits
        Length of the key of encrypted labels: 2048 or 3072.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> flower = pl.Series("flower", range(150))
    >>> north = pl.DataFrame(X[:, :2], schema=["a", "b"]).with_columns(flower, label=y)
    >>> south = pl.DataFrame(X[:, 2:], schema=["c", "d"]).with_columns(flower)
    >>> fed = sv.federate_columns({"north": north, "south": south}, label="label", id="flower")
    >>> model = sv.VerticalForest(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_ <= 2 * 4 + 3
    True
    >>> model.forest_ == sv.PooledForest(n_estimators=20, max_depth=4).fit(fed).forest_
    True
    >>> model.predict(fed).columns
    ['flower', 'prediction']
    """

    max_depth: int | None = 10
    labels: str = "encoded"
    auditor: bool = False
    key_bits: int = 2048

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        columns = _columns(federation)
        if self.labels == "encoded":
            structure = vertical.fit(federation, columns, self.schema_, settings, feature_key)
        elif self.labels == "encrypted":
            structure = vertical_encrypted.fit(federation, columns, self.schema_, settings, feature_key, self.key_bits)
        else:
            raise InputError(f"labels must be 'encoded' or 'encrypted', got {self.labels!r}")
        if self.auditor:
            shares = show_shares(federation, structure)
        elif isinstance(federation, ColumnFederation):
            shares = {name: share_of(federation.party(name), structure.model) for name in structure.parties}
        else:
            shares = {}
        self._keep(structure, shares)

    def _keep(self, structure: Structure, shares: dict[str, Share]) -> None:
        self.__dict__.pop("_whole", None)
        self.schema_, self.structure_, self.shares_ = structure.schema, structure, shares

    # -- the whole forest, where it is known

    @cached_property
    def _whole(self) -> Forest:
        return put_together(self._fitted(), self.shares_)

    @property
    def forest_(self) -> Forest:  # type: ignore[override]
        """The whole forest: in one process, or with an auditor; nobody has it otherwise."""
        lacking = [party for party in self._fitted().parties if party not in self.shares_]
        if lacking:
            raise InputError(
                f"the whole forest is in no one place: the share of party {lacking[0]!r} is not known here; fit with "
                "auditor=True to have every party show its own"
            )
        return self._whole

    @property
    def forests_(self) -> dict[str, Forest]:  # type: ignore[override]
        """The same forest for every party."""
        return dict.fromkeys(self._fitted().parties, self.forest_)

    def _fitted(self) -> Structure:
        if "structure_" not in self.__dict__:
            raise InputError("this learner is not fitted yet; call fit(federation) first")
        return self.structure_

    # -- prediction

    def predict(self, X: Any, site: str | None = None, **how: Any) -> Any:
        """Predict the rows of a federation by columns: a data frame of ids and predictions, in one round.

        Parameters
        ----------
        X
            The federation; or a joined table or array, where the whole forest is known.
        site
            For a table: whose forest to use. All are the same.
        method
            "one round", or "classical" to ask the owner of one node after the other, as a comparison.
        incomplete
            Also predict rows that some parties lack, whose columns then count as missing. A column ``lacking`` names
            these parties, and ``lacking_`` counts.
        """
        if not isinstance(X, Federation):
            return super().predict(X, site)
        structure = self._fitted()
        frame, scores = self._answers(X, **how)
        classes = structure.schema.label.classes
        answers = scores[:, 0] if classes is None else [classes[code] for code in scores.argmax(axis=1)]
        return _with(frame, {"prediction": answers})

    def predict_proba(self, X: Any, site: str | None = None, **how: Any) -> Any:
        """Give class probabilities as ``predict`` gives classes: a data frame of ids and a column a class."""
        if not isinstance(X, Federation):
            return super().predict_proba(X, site)
        classes = self._fitted().schema.label.classes
        if classes is None:
            raise InputError("predict_proba is for classification; this forest predicts a number")
        frame, scores = self._answers(X, **how)
        return _with(frame, {str(name): scores[:, code] for code, name in enumerate(classes)})

    def _answers(
        self, federation: Federation, method: Method = "one round", incomplete: bool = False
    ) -> tuple["pl.DataFrame", np.ndarray]:
        import polars as pl

        columns = _columns(federation)
        digests, lacking = columns.common, {}
        if incomplete:
            if columns.known is None:
                raise InputError("incomplete=True needs match='keyed': with 'psi' nobody knows the rows not in common")
            digests = in_any(columns.known)
            absent = {party: find_digests(known, digests) < 0 for party, known in columns.known.items()}
            self.lacking_ = {party: int(rows.sum()) for party, rows in absent.items()}
            lacking = {"lacking": [", ".join(p for p, rows in absent.items() if rows[i]) for i in range(len(digests))]}
        scores = self._scores(federation, digests, method)
        if not isinstance(federation, ColumnFederation):
            return pl.DataFrame({"row": [row.tobytes().hex() for row in digests.astype(">u8")], **lacking}), scores
        order, ids = federation.listing(digests)
        frame = pl.DataFrame({federation.id_column: ids, **{k: [v[i] for i in order] for k, v in lacking.items()}})
        return frame, scores[order]

    def _scores(self, federation: Federation, digests: np.ndarray, method: Method = "one round") -> np.ndarray:
        if method not in ("one round", "classical"):
            raise InputError(f"method must be 'one round' or 'classical', got {method!r}")
        structure = self._fitted()
        if isinstance(federation, ColumnFederation):
            hand_out(federation, structure, self.shares_)
        find = find_leaves if method == "one round" else find_leaves_classically
        return score_leaves(federation, structure, find(federation, structure, digests))

    # -- judging

    def evaluate(self, federation: Federation, table: Any = None) -> "pl.DataFrame":
        """Judge the model beside what each party has alone, were it told the label, and beside the joined table.

        Rows kept for judging are scored in one round, and the label holder compares the scores with its labels. All
        parties have the same rows, so they have the same figures; what they would have alone differs. With a ``table``
        of all columns every model is scored on that instead.
        """
        columns = _columns(federation)
        if table is not None or columns.label_holder is None or not len(columns.test):
            return super().evaluate(federation, table)  # which says what is lacking
        with federation.counted_apart():
            scores = self._scores(federation, columns.test)
        figures = judge(federation, columns.label_holder, self._fitted().schema, columns.test, scores)
        if not isinstance(federation, ColumnFederation):
            return _frame([Row(OVERALL, FEDERATED, len(columns.test), figures)])
        rows = self._on_test_rows(federation, self._contenders(federation))
        return _frame([replace(row, figures=figures) if row.model == FEDERATED else row for row in rows])

    # -- files

    def save(self, folder: str | Path) -> None:
        """Write the structure and every share that is known here, each to a file of its own.

        A party's file is its own: it can take it away, or delete it, and what is left says nothing about its splits.
        The structure is written last, so a folder that was not finished holds no model.
        """
        structure, folder = self._fitted(), Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for party, share in self.shares_.items():
            write_whole(folder / _file(party), share.to_bytes())
        write_whole(folder / _PARAMETERS, msgspec.json.encode(self.get_params()))
        write_whole(folder / _STRUCTURE, structure.to_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; shares that are not there are not known."""
        folder = Path(folder)
        structure = _read(folder / _STRUCTURE, Structure.from_bytes)
        shares = {}
        for party in structure.parties:
            if (folder / _file(party)).exists():
                share = _read(folder / _file(party), Share.from_bytes)
                structure.check_share(share, party)
                shares[party] = share
        parameters = _read(folder / _PARAMETERS, lambda data: msgspec.json.decode(data, type=dict[str, Any]))
        try:
            model = cls(**parameters)
        except TypeError:
            raise FormatError(f"{folder / _PARAMETERS}: not the parameters of a {cls.__name__}") from None
        model._keep(structure, shares)
        return model


def _file(party: str) -> str:
    return quote(party, safe=" ") + _SHARE


def _read(path: Path, read: Any) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; is {str(path.parent)!r} a saved model?")
    try:
        return read(path.read_bytes())
    except (FormatError, msgspec.DecodeError) as error:
        kind = type(error) if isinstance(error, FormatError) else FormatError
        raise kind(f"{path}: {error}") from None


def _with(frame: "pl.DataFrame", answers: dict[str, Any]) -> "pl.DataFrame":
    import polars as pl

    clash = [name for name in answers if name in frame.columns]
    if clash:
        raise InputError(f"the id column is called {clash[0]!r}, like an answer; rename it")
    return pl.concat([frame[:, :1], pl.DataFrame(answers), frame[:, 1:]], how="horizontal")


def _columns(federation: Federation) -> Columns:
    columns = getattr(federation, "columns", None)
    if columns is None:
        raise InputError("a federation by columns is needed (see federate_columns), got one by rows")
    return columns
