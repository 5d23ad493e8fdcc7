"""What models in shares have in common: whose the columns are, and how their files are written, read and checked.

A model in shares is stored in parts: the coordinator's file names the parties and their numbers of columns, and each
party has the part about its own columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.forest.tensors import read_tensors, write_tensors

VERSION = 1

_WORDS = ("model", "schema", "parties", "label_holder")


def require(condition: bool | np.bool_, what: str) -> None:
    """Raise an error that names the invalid part of a file."""
    if not condition:
        raise FormatError(f"{what}: it was damaged or forged")


@dataclass(frozen=True)
class ModelInShares:
    """The coordinator's part of a model in shares. Subclasses add arrays and list them in ``arrays``."""

    file_format: ClassVar[str]
    arrays: ClassVar[Mapping[str, Any]]  # element types, by name

    model: str
    schema: Schema
    parties: tuple[str, ...]
    columns: tuple[int, ...]  # how many of the schema's features each party has, in order
    label_holder: str

    def own_schema(self, party: str) -> Schema:
        """Return the schema of one party's columns."""
        k = self.parties.index(party)
        start = sum(self.columns[:k])
        return Schema(self.schema.features[start : start + self.columns[k]], self.schema.label)

    def named_schema(self, schemas: Mapping[str, Schema]) -> Schema:
        """Return the schema with the names in parties' shares; missing names stay numbers.

        ``schemas`` are those of the shares that are known here, by party.
        """
        features = [f for party in self.parties for f in schemas.get(party, self.own_schema(party)).features]
        return Schema(tuple(features), schemas.get(self.label_holder, self.schema).label)

    def has_columns(self, party: str, schema: Schema) -> bool:
        """Whether a schema fits a party's columns: the same kinds and numbers of categories."""
        kinds = [[(f.kind, f.n_codes) for f in some.features] for some in (schema, self.own_schema(party))]
        return kinds[0] == kinds[1]

    def to_bytes(self) -> bytes:
        """Write the coordinator's file."""
        words = {
            "model": self.model,
            "schema": self.schema.to_json(),
            "parties": msgspec.json.encode(dict(zip(self.parties, self.columns, strict=True))).decode(),
            "label_holder": self.label_holder,
        }
        return write_tensors(self.file_format, VERSION, words, {name: getattr(self, name) for name in self.arrays})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the coordinator's file and check all of it."""
        words, arrays = read_tensors(data, cls.file_format, VERSION, _WORDS, cls.arrays)
        try:
            parties = msgspec.json.decode(words["parties"], type=dict[str, int])
        except msgspec.DecodeError:
            raise FormatError("its parties cannot be read") from None
        schema = Schema.from_json(words["schema"])
        model = cls(words["model"], schema, tuple(parties), tuple(parties.values()), words["label_holder"], **arrays)
        model.check()
        return model

    def check(self) -> None:
        """Raise an error if parties and columns do not match; subclasses check their arrays too."""
        require(self.label_holder in self.parties, "its parties")
        require(min(self.columns) >= 0 and sum(self.columns) == len(self.schema.features), "its columns")
