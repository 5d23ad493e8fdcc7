"""A coordinator that follows the protocol's form but lies in its contents.

Takes a message of a real study and replaces something in it by another valid value: another schema, other cut points,
trees, sites or keys of sites (``false_rosters.py``), another task, the same request in another form. The result is
well formed, so that it tests a site's rules and not its parser.
"""

import dataclasses
import math
import random
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from helpers.false_rosters import STEPS, FalseRosters

from silvan.algorithms.shared_bins import CutPoints
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Envelope
from silvan.federation.store import digest
from silvan.forest.forest import Forest

_FLOATS = [0.0, 1.0, -1.0, 0.5, 1e-6, 5e-324, 1e30, 50.0, 1000.0, 2.0**-40]
_INTS = [0, 1, 2, 3, 10, 300, 2**40, -1]


class Liar:
    """Makes lies from all messages of some studies, the same ones for the same seed."""

    def __init__(self, envelopes: list[Envelope]) -> None:
        self.random = random.Random(0)  # noqa: S311
        self.blobs: dict[str, bytes] = {}
        self.by_sort: dict[type, list[str]] = {}  # blobs by content
        self.seen: dict[tuple[str, type], list[Any]] = {}  # values by name of the field
        self.sites: list[str] = []
        self.tasks: list[str] = []
        self.studies: list[str] = []
        for envelope in envelopes:
            self._look_at(envelope)

    def _look_at(self, envelope: Envelope) -> None:
        for hash_, data in envelope.blobs.items():
            if hash_ not in self.blobs:
                self.blobs[hash_] = data
                self.by_sort.setdefault(sort_of(data), []).append(hash_)
        for known, new in (
            (self.sites, envelope.over),
            (self.tasks, [envelope.task]),
            (self.studies, [envelope.study]),
        ):
            known += [name for name in new if name not in known]
        self._remember(wire.decode(envelope.body, HANDLERS[envelope.kind][0]))

    def _remember(self, message: Any) -> None:
        for name, value in fields_of(message).items():
            known = self.seen.setdefault((name, type(value)), [])
            if len(known) < 50:
                known.append(value)
            if fields_of(value):
                self._remember(value)

    # -- messages

    def lie(self, envelope: Envelope, content: dict[str, bytes]) -> Envelope:
        """Returns a message with something else in it; ``content`` are the blobs that it may refer to."""
        pick, change = self.random, {}
        if pick.random() < 0.2:
            envelope = FalseRosters(self.sites, pick).lie(envelope)
            change["over"] = envelope.over
        if pick.random() < 0.25:
            change |= self._about_sum(envelope)
        if pick.random() < 0.3:
            change["task"] = pick.choice([*self.tasks, "another", f"{envelope.task} again"])
        if pick.random() < 0.03:
            change["study"] = pick.choice([*self.studies, "another study"])
        if envelope.step is not None and pick.random() < 0.3:
            kind = STEPS[envelope.step.sums]
            body = wire.encode(self.struct(wire.decode(envelope.step.body, kind)))
            change["step"] = msgspec.structs.replace(envelope.step, body=body)
        body, blobs = envelope.body, dict(content)
        if not change or pick.random() < 0.7:
            request = wire.decode(body, HANDLERS[envelope.kind][0])
            for _ in range(pick.choice((1, 1, 2, 3))):
                request = self.struct(request, blobs)
            body = wire.encode(request)
        if envelope.owners and pick.random() < 0.3:  # one site's blob replaces another's
            signed = [owner for owners in envelope.owners.values() for owner in owners]
            change["owners"] = {hash_: pick.sample(signed, 1) for hash_ in blobs}
        change["round"] = envelope.round + pick.choice((0, 0, 1, -1))
        named = [body, *(repr(v).encode() for v in change.values()), bytes([pick.randrange(3)])]
        if pick.random() < 0.8:  # a request has its own name
            change["question"] = digest(b"\0".join(named))
        return msgspec.structs.replace(envelope, body=body, blobs=blobs, **change)

    def _about_sum(self, envelope: Envelope) -> dict[str, Any]:
        over, pick = list(envelope.over), self.random
        pick.shuffle(over)
        others = [over[:-1], over[:1], [*over, "nobody"], over + over[:1], self.sites, [], envelope.over[1:]]
        return {"over": list(pick.choice(others))}

    # -- what is in them

    def struct(self, message: Any, blobs: dict[str, bytes] | None = None) -> Any:
        """Returns a message, or its content, with another value in one field."""
        fields = fields_of(message)
        for _ in range(10 if fields else 0):
            name = self.random.choice(list(fields))
            replace = dataclasses.replace if dataclasses.is_dataclass(message) else msgspec.structs.replace
            with suppress(SilvanError, TypeError, ValueError, OverflowError):
                return replace(message, **{name: self.other(name, fields[name], blobs)})
        return message

    def other(self, name: str, value: Any, blobs: dict[str, bytes] | None) -> Any:
        """Returns another value of the same type for a field."""
        pick = self.random
        known = self.seen.get((name, type(value)), [])
        if isinstance(value, Blob):
            return self.blob(value, {} if blobs is None else blobs)
        if known and pick.random() < 0.3:
            return pick.choice(known)
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return pick.choice([value + 1, value - 1, *_INTS])
        if isinstance(value, float):
            return pick.choice([value * 2, value / 2, math.nextafter(value, math.inf), -value, *_FLOATS])
        if isinstance(value, str):
            return pick.choice([*self.sites, *self.tasks, value + "x", "", "label", "age"])
        if isinstance(value, bytes):
            return value[::-1] if pick.random() < 0.5 else value + value[:8]
        if isinstance(value, list | tuple):
            return type(value)(self.items(name, list(value), blobs))
        if isinstance(value, dict):
            kept = list(value.items())
            pick.shuffle(kept)
            return {k: self.other(name, v, blobs) for k, v in kept[: max(1, len(kept) - pick.randrange(2))]}
        return self.struct(value, blobs) if fields_of(value) else value

    def items(self, name: str, value: list[Any], blobs: dict[str, bytes] | None) -> list[Any]:
        pick = self.random
        if not value:
            return pick.choice([[*self.sites], [""], [0]])
        i, how = pick.randrange(len(value)), pick.randrange(5)
        if how == 0:
            return [*value[:i], *value[i + 1 :]]
        if how == 1:
            return [*value, value[i]]
        if how == 2:
            return pick.sample(value, len(value))
        return [*value[:i], self.other(name, value[i], blobs), *value[i + 1 :]]

    def array(self, value: np.ndarray) -> np.ndarray:
        pick, changed = self.random, value.copy()
        how = pick.randrange(7)
        if not value.size or how == 0:
            return value[:-1] if value.ndim else value
        flat, i = changed.reshape(-1), pick.randrange(value.size)
        if how == 1:
            return np.concatenate([value, value[:1]]) if value.ndim else value
        if how == 2 and value.ndim:
            return value[np.array(pick.sample(range(len(value)), len(value)), int)]
        if how == 3:
            flat[i] = flat[pick.randrange(value.size)]
        elif value.dtype.kind == "f":
            flat[i] = pick.choice([flat[i] * 2, -flat[i], np.nextafter(flat[i], np.inf), 0.0, 41.5, 1e30])
        elif value.dtype.kind == "b":
            flat[i] = not flat[i]
        else:
            with np.errstate(over="ignore"):
                flat[i] = flat[i] + value.dtype.type(1) if pick.random() < 0.5 else value.dtype.type(pick.randrange(8))
        return changed

    # -- what messages refer to

    def blob(self, blob: Blob, blobs: dict[str, bytes]) -> Blob:
        """Refers to another blob of the same sort, mostly an invented one."""
        data = blobs.get(blob.hash) or self.blobs.get(blob.hash)
        if data is None:
            return blob
        sort = sort_of(data)
        alike = [self.blobs[hash_] for hash_ in self.by_sort.get(sort, [])]
        if alike and self.random.random() < 0.3:
            data = self.random.choice(alike)
        for _ in range(self.random.choice((0, 1, 1, 2))):
            with suppress(SilvanError, ValueError, TypeError, OverflowError):
                data = self.content(sort, data)
        blobs[digest(data)] = data
        return Blob(digest(data))

    def content(self, sort: type, data: bytes) -> bytes:
        """Returns another schema, trees or cut points, of the same sort."""
        if sort is Schema:
            return self.schema(Schema.from_json(data)).to_json().encode()
        if sort is Forest:
            return self.forest(Forest.from_bytes(data)).to_bytes()
        if sort is CutPoints:
            points = wire.decode(data, CutPoints)
            values = self.array(points.values)
            return wire.encode(
                CutPoints(points.sizes, np.sort(values) if len(values) == points.sizes.sum() else values)
            )
        return data[:-16] + data[:16] if len(data) > 32 else data

    def schema(self, schema: Schema) -> Schema:
        pick, features = self.random, list(schema.features)
        how, i = pick.randrange(7), pick.randrange(len(features))
        if how == 0:
            return Schema(tuple(pick.sample(features, len(features))), schema.label)
        if how == 1:
            return Schema(tuple(features[:i] + features[i + 1 :]), schema.label)
        if how <= 3:
            features[i] = self.feature(features[i])
            return Schema(tuple(features), schema.label)
        return Schema(tuple(features), self.label(schema.label, features[i].name))

    def feature(self, feature: Feature) -> Feature:
        pick = self.random
        if feature.categorical:
            names = list(feature.categories or ())
            changed = [names[::-1], names[1:], [*names, "more"], [*names[:-1], "renamed"]]
            return Feature(
                feature.name, "categorical", categories=tuple(pick.choice(changed)), other=pick.random() < 0.5
            )
        low = pick.choice([-1.0, 0.0, 41.0, -1e30])
        return pick.choice(
            [
                Feature(feature.name, bounds=(low, math.nextafter(low, math.inf))),
                Feature(feature.name, bounds=(low, low + 5.0)),
                Feature(feature.name, edges=(41.0, 42.0, 43.0)),
                Feature(feature.name, "categorical", categories=("a", "b"), other=True),
                Feature(feature.name + "s"),
            ]
        )

    def label(self, label: Label, column: str) -> Label:
        pick = self.random
        low = pick.choice([0.0, -1.0, 1000.0, -1e300])
        narrow = [(0.0, 5e-324), (low, math.nextafter(low, math.inf)), (low, low + 1.0), (-1e308, 1e308)]
        if label.classes is not None:
            names = list(label.classes)
            changed = [names[::-1], names[:1], [*names, "more"], [*names[:-1], "other"]]
            made = [Label(label.name, tuple(pick.choice(changed))), Label(label.name, bounds=pick.choice(narrow))]
            return pick.choice([*made, made[0], Label(column, label.classes), Label(column)])
        return pick.choice([Label(label.name, bounds=pick.choice(narrow)), Label(label.name), Label(column)])

    def forest(self, forest: Forest) -> Forest:
        """Forges trees: other thresholds, features, values, weights; only some of them, or some twice."""
        pick = self.random
        how = pick.randrange(5)
        if how == 0:
            keep = np.array([pick.random() < 0.6 for _ in range(len(forest))])
            return forest.take(keep if keep.any() else ~keep)
        name = ("threshold", "feature", "value", "weights")[how - 1]
        array = getattr(forest, name).copy()
        flat, i = array.reshape(-1), pick.randrange(max(1, array.size))
        if name == "feature" and array[i] >= 0:
            array[i] = pick.randrange(forest.n_features)
        elif name == "threshold":
            flat[i] = pick.choice([41.9, 42.1, 0.0, float(flat[i]) + 1.0])
        elif name == "value":
            array[:] = array[::-1] if pick.random() < 0.5 else np.roll(array, 1, axis=-1)
        else:
            flat[i] = 0.0 if flat.sum() > flat[i] else flat[i]
        return dataclasses.replace(forest, **{name: array})


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a struct or data class; none for anything else."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def sort_of(data: bytes) -> type:
    """Detects the sort of a blob; ``bytes`` if it is none of the sorts that are lied about."""
    for sort, read in ((Schema, Schema.from_json), (Forest, Forest.from_bytes), (CutPoints, None)):
        with suppress(SilvanError, ValueError, UnicodeDecodeError, msgspec.DecodeError):
            if read is None:
                wire.decode(data, CutPoints)
            else:
                read(data)
            return sort
    return bytes
