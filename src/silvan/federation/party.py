"""A party: a site of a federation by columns, which holds some columns of the same rows as the others.

An id identifies each row. Ids are never sent: parties share a key that the coordinator does not have, and refer to a
row by a keyed digest of its id. Names of columns, categories and classes are hidden from the coordinator as well,
unless the study shows them.
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
"""The types of ids."""


Match = Literal["keyed", "psi"]
"""How rows are matched: by digests of all IDs, which the coordinator sees, or by private set intersection."""

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
    """The ids of a table as texts, with the numbers of missing and repeated ones."""

    kind: str  # "" if they are neither numbers nor text
    texts: list[str]
    missing: int
    repeated: int


class Party(Site):
    """One organisation's side of a federation by columns.

    ``id_column`` identifies rows. The party sends digests of all ids only if rows are matched by them, not with
    ``match="psi"``. ``seals`` are the keys of the other parties; it seals the shared key for these only. A ``seed``
    makes a study repeatable: the same rows are sampled again. ``given`` is the schema, if it is agreed beforehand. With
    ``show_names`` the coordinator learns the names of columns, categories and classes. If the party's store outlives a
    study, ``only_study`` is the current one: keys are drawn anew for each study. ``label_holder`` is the party that
    holds the label according to the study's text. ``predictions`` is the file for predictions of its rows, if it
    accepts any; in a study that only predicts, ``model`` is the only model that may be used.
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
        """The key that all parties share, which one of them drew."""
        key = self.store.get(self.key_name)
        if key is None:
            raise RefusedError("the parties have not agreed on a key yet")
        return key

    @property
    def key_name(self) -> str:
        """The key of the shared key in the party's store."""
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
        """Derive 64 bytes for a purpose from the key that all parties share."""
        return hmac.digest(self.key, purpose.encode(), "sha512")

    def secret_for(self, purpose: str) -> bytes:
        """Derive 64 bytes for a purpose from the party's own secret."""
        return hmac.digest(self.secret, purpose.encode(), "sha512")

    # -- which study, label and model

    def check_study(self, study: str) -> None:
        """Raise ``RefusedError`` if a key is for another study than the current one."""
        if self.only_study not in (None, study):
            raise RefusedError("the key is for another study")

    def check_label(self) -> None:
        """Raise ``RefusedError`` if the study's text names another label holder than the tables suggest."""
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
        """Raise ``RefusedError``: the party has no whole rows."""
        raise RefusedError("the party holds columns of rows that other parties have as well; use VerticalForest")

    def rows_at(self, places: np.ndarray, schema: Schema | None = None) -> Frame:
        """Return some rows of the table in a given order; with a schema, cells are read according to it."""
        frame: Frame = (self.frame if schema is None else self.frame_by(schema))[places, :]
        return frame

    @cached_property
    def ids(self) -> Ids:
        """The ids as texts that are equal at all parties."""
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
            # one missing cell turns whole numbers into floats; beyond 2^53 a float stands for several whole numbers
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
    """Derive a key from a seed, for a repeatable study: anybody who knows the seed knows the key."""
    return hmac.digest(f"silvan {seed}".encode(), purpose.encode(), "sha256")
