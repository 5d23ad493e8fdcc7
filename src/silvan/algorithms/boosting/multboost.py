"""MultBoost (thesis, 2.3.1.1): AdaBoost whose classifier of each round is a vote of one stump from every site.

In a round each site finds the best stump for its weighted rows (``ask``), the stumps vote, and the masses of rows that
the vote gets right, wrong or leaves undecided are summed (``total``): they give the vote its weight and the rows their
new ones. T stages take at most 2T rounds. The thesis describes it without pseudo-code. A tie is a vote for neither
class, and does not change a row's weight. Every request repeats all stages so far, so a site keeps no state. Sites
sign their stumps together with the decisions before them, and weight rows only by signed stumps, one per site and
stage.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np

from silvan.algorithms.boosting.adaboost import ONE, nothing_learnt, reweigh, stage_forest, stage_weight, weigh
from silvan.algorithms.boosting.stumps import (
    Boosting,
    Stumps,
    check_stumps,
    check_two_classes,
    find_stump,
    join_stumps,
    stump_table,
)
from silvan.algorithms.requests import check_owners, schema_of
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import (
    Agreed,
    Ask,
    Blob,
    Derived,
    Fixed,
    ProtocolPosition,
    Request,
    SignedReply,
    SummedReply,
    Total,
)
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey, digest
from silvan.forest.forest import Forest
from silvan.forest.predict import scores

_MOST = 1 << 20  # maximum number of stumps over all stages
_ROUNDING = ONE >> 20  # how far the total mass of all rows may be from 1, because each is rounded


# -- messages
class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """The stages so far: their stumps, stage after stage, and the masses that each got right, wrong, neither."""

    stumps: Stumps
    sizes: np.ndarray  # int64 (stages,)
    masses: np.ndarray  # int64 (stages, 3); none yet for the current stage
    made: tuple[Blob, ...] = ()  # each stump as the site that made it signed it

    def position(self) -> ProtocolPosition:
        """Return the decisions so far: a stage, then its masses, then the next stage."""
        decided: list[str] = []
        for i, stage in enumerate(_stages(self)):
            decided.append(digest(_stage_bytes(stage)))
            if i < len(self.masses):
                decided.append(digest(self.masses[i].tobytes()))
        return ProtocolPosition("stages", tuple(decided))

    def before(self) -> list[str]:
        """Return digests of the decisions before each stage, and before the next one."""
        decided, found = self.position().decided, [digest(b"")]
        for i in range(0, len(decided), 2):
            found.append(digest("".join([found[-1], *decided[i : i + 2]]).encode()))
        return found


class SignedStump(msgspec.Struct, frozen=True):
    """What a site signs: a stump, and a digest of the decisions before it."""

    stump: Stumps
    after: str


class FoundStump(SignedReply, frozen=True, kw_only=True):
    """A site's stump; its weight is 1, or 0 if it is no better than chance at the site."""

    stump: Stumps
    after: str = ""  # a digest of the decisions before it

    def work(self) -> bytes:
        """Return the stump, with the decisions before it, as a message."""
        return wire.encode(SignedStump(self.stump, self.after))


class AfterStages(Request, frozen=True, kw_only=True):
    """A request about rows, weighted by the stages so far."""

    schema: Agreed[Blob]
    rows: Derived[int]  # of all sites
    merged: Derived[Stages]

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all stages and their masses."""
        return self.merged.position()

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return the trace that the next request must repeat: the schema and the number of rows."""
        trace = f"{self.schema.hash} {self.rows}".encode()
        return trace if further and all(other == trace for other in traces) else None


class FindStump(AfterStages, Ask[FoundStump], frozen=True, kw_only=True):
    """The best stump for the site's rows, weighted by what the merged stumps so far get wrong."""

    settings: Fixed[Boosting]

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the site's policy checks."""
        return self.settings.min_samples_leaf


class StageMasses(SummedReply, frozen=True, kw_only=True):
    """Masses of the site's rows that the newest stage gets right, wrong, neither."""

    masses: np.ndarray


class WeighStage(AfterStages, Total[StageMasses], frozen=True, kw_only=True):
    """The total weight of rows that the newest merged stumps classify correctly, and wrongly."""


# -- at a site
@dataclass
class _Weighted:
    """The weights of a site's rows: a cache, recomputed when it does not fit the request."""

    weight: np.ndarray
    done: list[bytes]  # the stages that they come from


@answers(FindStump)
def find(site: Site, request: FindStump) -> FoundStump:
    """Find a stump for the weighted rows."""
    schema = schema_of(site, request.schema)
    table = stump_table(site, schema, request.settings)
    _check(request.merged, len(request.merged.sizes), request.rows, schema, site)
    weight = _weights(site, schema, request)
    stump, right = find_stump(table, weight, request.settings)
    masses = weigh(weight / weight.sum(), right)
    counts = not table.one_class and stage_weight(masses, len(table)) > 0.0
    return FoundStump(stump=stump.weighted(np.array([float(counts)])), after=request.merged.before()[-1])


@answers(WeighStage)
def weigh_stage(site: Site, request: WeighStage) -> StageMasses:
    """Weigh the rows that the newest stage gets right and wrong."""
    schema = schema_of(site, request.schema)
    check_two_classes(schema)
    _check(request.merged, len(request.merged.sizes) - 1, request.rows, schema, site)
    weight = _weights(site, schema, request)
    stage = list(_stages(request.merged))[-1]
    return StageMasses(masses=weigh(weight, _outcome(site, schema, stage)))


def _weights(site: Site, schema: Schema, request: AfterStages) -> np.ndarray:
    """Return the row weights after all stages with known masses."""
    weighed = list(zip(_stages(request.merged), request.merged.masses, strict=False))
    names = [_stage_bytes(stage) + masses.tobytes() for stage, masses in weighed]
    known = site.cache.once(
        CacheKey[_Weighted]("weighted", schema.hash, request.rows),
        lambda: _Weighted(np.full(len(site.part(schema)), 1.0 / request.rows), []),
        lambda known: known.done == names[: len(known.done)],
    )
    for name, (stage, masses) in list(zip(names, weighed, strict=True))[len(known.done) :]:
        known.weight = reweigh(known.weight, _outcome(site, schema, stage), masses, request.rows)
        known.done.append(name)
    reject(known.weight.max() > 2.0, "the masses are not those of these rows")
    return known.weight


def _outcome(site: Site, schema: Schema, stage: Stumps) -> np.ndarray:
    """Return which rows a stage gets right (1) and wrong (-1), and where it is undecided (0)."""

    def compare() -> np.ndarray:
        part = site.part(schema)
        share = scores(stage_forest([stage], [1.0], schema), part.X, site.n_jobs)[:, 1]
        return (np.sign(share - 0.5) * np.where(part.y == 1, 1, -1)).astype(np.int8)

    return site.cache.once(CacheKey[np.ndarray]("stage", schema.hash, _stage_bytes(stage)), compare)


def _stage_bytes(stage: Stumps) -> bytes:
    return b"".join(getattr(stage, name).tobytes() for name in stage.__struct_fields__)


def _stages(merged: Stages) -> list[Stumps]:
    ends = np.cumsum(merged.sizes).tolist()
    return [merged.stumps.take(slice(a, b)) for a, b in pairwise([0, *ends])]


def _check(merged: Stages, weighed: int, rows: int, schema: Schema, site: Site) -> None:
    """Raise ``FormatError`` if the stages contradict each other, or the site's rows."""
    stumps, sizes, masses = merged.stumps, merged.sizes, merged.masses
    check_stumps(stumps, schema, _MOST)
    if sizes.ndim != 1 or sizes.dtype != np.int64 or (sizes < 1).any() or (sizes > len(stumps)).any():
        raise FormatError("the stages do not match")
    if sizes.sum() != len(stumps) or any(not stage.weight.any() for stage in _stages(merged)):
        raise FormatError("the stages do not match")
    if masses.shape != (weighed, 3) or masses.dtype != np.int64 or (masses < 0).any() or (masses > 2 * ONE).any():
        raise FormatError("the masses do not match")
    reject(not len(site.part(schema)) <= rows < MAX_ROWS, "its number of rows is impossible")
    reject(any(stage_weight(m, rows) == 0.0 for m in masses), "a stage that is no better than chance")
    _check_made(merged, site)


def _check_made(merged: Stages, site: Site) -> None:
    """Raise an error unless sites signed the stumps for their stages, at most one per site and stage."""
    if len(merged.made) != len(merged.stumps):
        raise RefusedError("the site weights rows only by stumps that sites made and signed")
    known = site.cache.once(CacheKey[set[bytes]]("signed stages", site.study, site.task), lambda: set[bytes]())
    ends = np.cumsum(merged.sizes).tolist()
    for stage, after, (first, stop) in zip(_stages(merged), merged.before(), pairwise([0, *ends]), strict=False):
        made = merged.made[first:stop]
        name = _stage_bytes(stage) + "".join([after, *(blob.hash for blob in made)]).encode()
        if name not in known:
            single = [stage.take(slice(i, i + 1)) for i in range(len(stage))]
            if [blob.hash for blob in made] != [digest(wire.encode(SignedStump(stump, after))) for stump in single]:
                raise RefusedError("the site weights rows only by stumps that sites made and signed")
            check_owners(site, made)
            known.add(name)


# -- at the coordinator
def fit(federation: Federation, schema: Schema, settings: Boosting) -> Forest:
    """Run AdaBoost over all sites; stop early when a stage is always right, or no better than chance."""
    check_two_classes(schema)
    rows = sum(federation.rows[site] for site in federation.active)
    named = federation.blob(schema.to_json().encode())
    contributing = federation.active  # the sites whose rows' weights add up to 1
    kept: list[Stumps] = []
    made: list[Blob] = []
    weights: list[float] = []
    masses = np.zeros((0, 3), np.int64)
    for _ in range(settings.n_estimators):
        merged = _merged(kept, masses, made)
        after = merged.before()[-1]
        found: dict[str, FoundStump] = federation.ask(
            FindStump(schema=named, settings=settings, rows=rows, merged=merged),
            check=partial(_check_found, schema, after),
        )
        stage = join_stumps([reply.stump for reply in found.values()])
        if not stage.weight.any():
            break
        made += [federation.work(site, reply) for site, reply in found.items()]
        reply: StageMasses = federation.total(
            WeighStage(schema=named, rows=rows, merged=_merged([*kept, stage], masses, made)),
            check=lambda site, reply: _check_masses(reply.masses, whole=False),
        )
        try:
            _check_masses(reply.masses, whole=federation.active == contributing)
        except FormatError as error:
            raise FederationError(f"{error}: a site's answer is wrong, and the sum does not tell whose") from None
        contributing = federation.active
        alpha = stage_weight(reply.masses, rows)
        if alpha == 0.0:
            break
        kept.append(stage)
        weights.append(alpha)
        masses = np.concatenate([masses, reply.masses[None]])
        if not reply.masses[1:].any():
            break
    if not kept:
        return nothing_learnt(stage, schema)
    return stage_forest(kept, weights, schema)


def _merged(kept: list[Stumps], masses: np.ndarray, made: list[Blob]) -> Stages:
    sizes = np.array([len(stage) for stage in kept], np.int64)
    return Stages(stumps=join_stumps(kept), sizes=sizes, masses=masses, made=tuple(made))


def _check_found(schema: Schema, after: str, site: str, reply: FoundStump) -> None:
    stump = reply.stump
    check_stumps(stump, schema, 1)
    reject(reply.after != after, "its stump is of another stage")
    reject(len(stump) != 1 or stump.weight[0] not in (0.0, 1.0), "it is not one stump, or has a weight of its own")


def _check_masses(masses: np.ndarray, whole: bool) -> None:
    """Raise ``FormatError`` for impossible masses; with ``whole``, they must add up to those of all rows."""
    if masses.shape != (3,) or masses.dtype != np.int64 or (masses < 0).any() or (masses > 2 * ONE).any():
        raise FormatError("its masses are not the ones requested")
    excess = int(masses.sum()) - ONE
    if excess > _ROUNDING or (whole and excess < -_ROUNDING):
        raise FormatError("the masses of rows that are right and wrong do not add up")
