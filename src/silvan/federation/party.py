"""A party: a site of a federation by columns, which holds some columns of rows that others know too.

An id identifies each row. Nobody is sent an id: parties share a key that the coordinator does not have, and name a
row by a keyed digest of its id. Nor is the coordinator told what columns, categories and classes are called, unless the
study says so.
"""

import hmac
import secrets
import unicodedata
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import narwhals as nw
import numpy as np

from silvan.data.schema import Schema
from silvan.data.typed_table import Frame
from silvan.errors import RefusedError
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.site_table import SiteSettings

KEY_BYTES = 32

WHOLE, TEXT = "whole numbers", "text"
"""What ids can be."""


Match = Literal["keyed", "psi"]
"""How rows are matched: by digests of all ids, which the coordinator sees, or by private set intersection."""

_OWN = (
    "id_column",
    "match",
    "seals",
    "seed",
    "given",
    "show_names",
    "only_study",
    "predictions",
    "model",
    "label_holder",
)


class Ids(NamedTuple):
    """The IDs of a table as texts, with the numbers of missing and repeated ones."""

    kind: str  # "" if they are neither numbers nor text
    texts: list[str]
    missing: int
    repeated: int


class Party(Site):
    """One organisation's side of a federation by columns.

    ``id_column`` identifies rows. Digests of ids are handed over only if rows are matched by them, not with
    ``match="psi"``. ``seals`` are the keys by which the party knows the others, and the only ones that
    it seals the shared key for. By a ``seed`` a study can be repeated: the same rows are sampled again. ``given`` says
    what the columns mean, if that is agreed beforehand. With ``show_names`` the coordinator learns what columns,
    categories and classes are called. A party whose store outlives a study is at work on ``only_study``: its
    keys are drawn anew for each. ``label_holder`` is the party that holds the label by the study's text, if that names
    it. ``predictions`` is the file that predictions of its rows are written to, if it takes
    any; in a study that only predicts, ``model`` is the one model that it is asked about.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        settings: SiteSettings | None = None,
        *,
        id_column: str,
        match: Match = "psi",
        seals: Mapping[str, bytes] | None = None,
        seed: int | None = None,
        given: Schema | None = None,
        show_names: bool = False,
        only_study: str | None = None,
        predictions: Path | None = None,
        model: str | None = None,
        label_holder: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(name, source, settings, **more)
        self.id_column, self.match, self.seals, self.seed = id_column, match, dict(seals or {}), seed
        self.given, self.show_names = given, show_names
        self.only_study, self.predictions, self.model = only_study, predictions, model
        self.label_holder = label_holder

    def own_settings(self) -> dict[str, Any]:
        """Return the arguments for creating a party besides a site's settings."""
        return {name: getattr(self, name) for name in _OWN}

    # -- keys

    @property
    def key(self) -> bytes:
        """The key that all parties share, drawn by one of them."""
        key = self.store.get(self.key_name)
        if key is None:
            raise RefusedError("the parties have not agreed on a key yet")
        return key

    @property
    def key_name(self) -> str:
        """Under which name the party's store has the key that all parties share."""
        return self._of_study("shared key")

    @property
    def secret(self) -> bytes:
        """The party's secret, created at first use."""
        name = self._of_study("secret")
        secret = self.store.get(name)
        if secret is None:
            secret = secrets.token_bytes(KEY_BYTES)
            self.store.put(name, secret)
        return secret

    def _of_study(self, what: str) -> str:
        return what if self.only_study is None else f"{what} of study {self.only_study}"

    def key_for(self, purpose: str) -> bytes:
        """Derive 64 bytes for one thing from the key that all parties share."""
        return hmac.digest(self.key, purpose.encode(), "sha512")

    def secret_for(self, purpose: str) -> bytes:
        """Derive 64 bytes for one thing from the party's own secret."""
        return hmac.digest(self.secret, purpose.encode(), "sha512")

    # -- what it is asked about

    def check_study(self, study: str) -> None:
        """Raise ``RefusedError`` if a key is for another study than the party is at work on."""
        if self.only_study not in (None, study):
            raise RefusedError("the key is for another study")

    def check_label(self) -> None:
        """Raise ``RefusedError`` if the study's text names another party, or this one, for the label's holder."""
        if self.label_holder is None or self.has_label == (self.name == self.label_holder):
            return
        here = "this table has it too: exclude the column" if self.has_label else "this table lacks it"
        raise RefusedError(f"the label is held by {self.label_holder!r}, by the study's text, and {here}")

    def check_model(self, model: str) -> None:
        """Raise ``RefusedError`` if the study is about another model."""
        if self.model not in (None, model):
            raise RefusedError("the study is about another model")

    # -- the table

    @property
    def has_label(self) -> bool:
        """Whether the label is here."""
        return self.label in self.frame.columns

    @property
    def columns(self) -> list[str]:
        """The columns that are features."""
        return [name for name in self.frame.columns if name not in (self.id_column, self.label)]

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Refuse to give whole rows: there are none."""
        raise RefusedError("the party holds columns of rows that others hold too; learn with VerticalForest")

    def rows_at(self, places: np.ndarray, schema: Schema | None = None) -> Frame:
        """Return some rows of the table, in the order asked for; with a schema, for their cells to be read by it."""
        frame: Frame = (self.frame if schema is None else self.frame_by(schema))[places, :]
        return frame

    @cached_property
    def ids(self) -> Ids:
        """The ids as texts that other parties would write alike."""
        if self.id_column not in self.frame.columns:
            return Ids("", [], 0, 0)
        series = self.frame[self.id_column]
        dtype = series.dtype
        missing = series.null_count()
        if dtype in (nw.String, nw.Categorical, nw.Enum):
            given = series.cast(nw.String).to_list()
            texts = [unicodedata.normalize("NFC", text).strip() for text in given if text is not None]
            missing = len(given) - sum(map(bool, texts))
            return Ids(TEXT, texts, missing, len(texts) - len(set(texts)))
        if dtype.is_float():
            numbers = series.to_numpy()
            numbers = numbers[np.isfinite(numbers)]
            missing = len(series) - len(numbers)
            # one missing cell turns whole numbers to floats; beyond 2^53 floats stand for several of them
            if np.any(numbers != np.floor(numbers)) or np.any(np.abs(numbers) >= 2.0**53):
                return Ids("", [], missing, 0)
            texts = [str(number) for number in numbers.astype(np.int64).tolist()]
        elif dtype.is_integer():
            texts = [str(number) for number in series.drop_nulls().to_list()]
        else:
            return Ids("", [], missing, 0)
        return Ids(WHOLE, texts, missing, len(texts) - len(set(texts)))


def party_of(site: Site) -> Party:
    """Return a site as a party; raise ``RefusedError`` for one that holds whole rows."""
    if not isinstance(site, Party):
        raise RefusedError("the site is not a party of a federation by columns")
    return site


def derived_key(seed: int, purpose: str) -> bytes:
    """Derive a key from a seed, for a study that must be repeatable: no secret to anybody who knows the seed."""
    return hmac.digest(f"silvan {seed}".encode(), purpose.encode(), "sha256")
