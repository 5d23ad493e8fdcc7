"""Describes columns for Table 1: over all sites from sums, and at each site that allows it.

Numbers over all sites come from the counts on the public grid that also determine bins. A site that describes its own
rows always follows three rules:

- counts of 1 to 9 rows are hidden, and others are rounded to multiples of five, so that sums over all sites do not
  reveal the hidden ones;
- a mean needs ten values, and ten rows of each value where a column has few different ones; a quantile needs ten values
  on either side;
- numbers have three significant digits.

A request names only the schema, and a study has one schema, so repeating it reveals nothing more.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.requests import counts_of, schema_of
from silvan.algorithms.shared_bins import CountFine, CountGrid, ValueCounts, count_values
from silvan.algorithms.table_one import QUANTILES, ROUNDED_TO, Line, Numbers, TableOne
from silvan.data.bins.cut_points import occupied_cells
from silvan.data.bins.grid import Grid, Heavy
from silvan.data.bins.grid import values as grid_values
from silvan.data.schema import Feature, Schema
from silvan.data.survival import events_of, times_of
from silvan.errors import FormatError, InputError, reject
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Agreed, Ask, Blob, Fixed, PartitionsWay, Reply, SummedReply, Total
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.privacy.announce import RequestPlan, refusals
from silvan.privacy.gate import holding_to
from silvan.privacy.terms import StudyText
from silvan.tree.fit import Settings

HIDDEN = -1
"""Stands for a hidden count."""

NONE_HEAVY = Heavy(np.zeros(0, np.int32), np.zeros(0, np.int32))

_DIGITS = 3  # significant digits of numbers that leave a site


# -- messages
class CodeCounts(SummedReply, frozen=True, kw_only=True):
    """Rows without a value and rows in each category, or between the edges of the schema, column after column.

    The label's classes come last; before all, the number of training rows.
    """

    counts: np.ndarray


class CountCodes(Total[CodeCounts], frozen=True, kw_only=True):
    """The number of training rows per category of each column, and with a missing value."""

    partitions: ClassVar[PartitionsWay] = "add up"

    described: Fixed[bool] = True
    schema: Agreed[Blob]


class SiteNumbers(Reply, frozen=True, kw_only=True):
    """Means, standard deviations and quartiles of the site's columns, and counts of at least ten rows."""

    rows: int
    missing: np.ndarray  # int64, by column with the label last, or HIDDEN
    numbers: np.ndarray  # float64 (columns and label, mean, standard deviation and quartiles); NaN: hidden
    counts: np.ndarray  # int64, of categories and of the label's classes, column after column


class DescribeRows(Ask[SiteNumbers], frozen=True, kw_only=True):
    """Means, quartiles and category counts of the site's training rows, each from at least ten rows."""

    described: Fixed[bool] = True
    schema: Agreed[Blob]


# -- both sides
def columns_of(schema: Schema) -> list[Feature]:
    """Return the columns of Table 1: the features, and the label last."""
    label = schema.label
    if label.event is not None:
        return [*schema.features, Feature(label.name), Feature(label.event, "categorical", categories=("no", "yes"))]
    if label.classes is None:
        return [*schema.features, Feature(label.name)]
    return [*schema.features, Feature(label.name, "categorical", categories=tuple(map(str, label.classes)))]


def hide_few(counts: np.ndarray) -> np.ndarray:
    """Hide counts of 1 to 9 rows."""
    return np.where((counts > 0) & (counts < FLOOR), HIDDEN, counts).astype(np.int64)


def round_counts(counts: np.ndarray) -> np.ndarray:
    """Hide counts of 1 to 9 rows, and round the others: together with exact sums, exact counts would reveal them."""
    shown = hide_few(counts)
    return np.where(shown == HIDDEN, HIDDEN, (shown + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO)


# -- at a site
@answers(CountCodes)
def count_codes(site: Site, request: CountCodes) -> CodeCounts:
    """Count the training rows by category."""
    schema = schema_of(site, request.schema)
    part = site.part(schema)
    counts = [_count_codes(part, f, feature, schema.label.event is not None) for f, feature in _coded(schema)]
    return CodeCounts(counts=np.concatenate([np.array([len(part)], np.int64), *counts]))


def _coded(schema: Schema) -> list[tuple[int, Feature]]:
    """Return the columns that are not counted on the public grid, by position; the label comes last."""
    return [(f, one) for f, one in enumerate(columns_of(schema)) if one.categorical or one.edges is not None]


def _n_cells(feature: Feature) -> int:
    """Return the number of counts of a column, including that of missing values."""
    return 1 + (feature.n_codes if feature.categorical else len(feature.edges or ()) + 1)


def _count_codes(part: Part, f: int, feature: Feature, survival: bool) -> np.ndarray:
    """Count rows without a value, and in each category or between edges."""
    counts = np.zeros(_n_cells(feature), np.int64)
    for piece in part.pieces():
        column = _column(piece, f, survival)
        known = column[~np.isnan(column)]
        codes = known.astype(np.int64) if feature.categorical else np.searchsorted(feature.edges or (), known)
        counts[0] += len(column) - len(known)
        counts[1:] += np.bincount(codes, minlength=len(counts) - 1)
    return counts


def _column(part: Part, f: int, survival: bool) -> np.ndarray:
    """Return a column by its place in Table 1: a feature, or the label; of times and events, one of them."""
    n = part.X.shape[1]
    if f < n or not survival:
        return part.X[:, f] if f < n else part.y
    return times_of(part.y) if f == n else events_of(part.y).astype(np.float64)


@answers(DescribeRows)
def describe_rows(site: Site, request: DescribeRows) -> SiteNumbers:
    """Describe the training rows, hiding small counts."""
    schema = schema_of(site, request.schema)
    part = site.part(schema)
    rows, survival = len(part), schema.label.event is not None
    missing, numbers, counts = [], [], []
    for f, feature in enumerate(columns_of(schema)):
        if feature.categorical:
            shown = round_counts(_count_codes(part, f, feature, survival))
            missing.append(shown[0])
            numbers.append(np.full(2 + len(QUANTILES), np.nan))
            counts.append(shown[1:])
        else:
            values = np.concatenate([_column(piece, f, survival) for piece in part.pieces()])
            known = values[~np.isnan(values)].astype(np.float64)
            missing.append(round_counts(np.array([rows - len(known)]))[0])
            numbers.append(_describe(known))
    return SiteNumbers(
        rows=rows,
        missing=np.array(missing, np.int64),
        numbers=np.stack(numbers),
        counts=np.concatenate([*counts, np.zeros(0, np.int64)]),
    )


def _describe(values: np.ndarray) -> np.ndarray:
    """Return mean, standard deviation and quartiles, rounded; NaN where too few rows are behind a number."""
    found = np.full(2 + len(QUANTILES), np.nan)
    if len(values) >= FLOOR:
        each = np.unique(values, return_counts=True)[1]
        if len(each) > FLOOR or each.min() >= FLOOR:  # otherwise the mean of zeros and ones would reveal the rare count
            found[:2] = values.mean(), values.std(ddof=1)
        for place, q in enumerate(QUANTILES):
            if len(values) * min(q, 1 - q) >= FLOOR:
                found[2 + place] = np.quantile(values, q, method="inverted_cdf")
    return np.array([float(f"{value:.{_DIGITS}g}") for value in found])


# -- at the coordinator
def _label_cells(values: ValueCounts) -> np.ndarray:
    """Return rows by coarse cell of a label that is a number, or a time."""
    counts = values.coarse.label.astype(np.int32)
    if values.schema.label.event is None:
        return counts
    by_time = counts.reshape(-1, 2).sum(axis=1, dtype=np.int32)
    return np.concatenate([np.zeros(len(by_time) - 1, np.int32), by_time])


def describe(federation: Federation) -> TableOne:
    """Describe the training rows of a federation: Table 1, over all sites and at each that allows it.

    Nothing is trained. Numbers over all sites come from sums; a site's own numbers hide counts below ten.

    Parameters
    ----------
    federation
        A federation from ``federate_rows``.

    Returns
    -------
    TableOne
        Prints as a table; ``frame()`` returns all numbers as a data frame.

    Examples
    --------
    >>> import silvan as sv
    >>> hospitals = sv.datasets.heart_disease()
    >>> table = sv.describe(sv.federate_rows(hospitals, site="hospital", label="disease"))
    >>> table.texts()[1][:3]
    ['age', '54 [47, 60]', '56 [48, 61]']
    """

    def fixed(schema: Schema | None) -> Mapping[str, Any]:
        return {"study": federation.study, "described": True, "max_bins": Settings.max_bins}

    text = StudyText(federation.schema.label.name, fixed, schema=federation.schema)
    with federation.working_on("describing"), holding_to(text, federation.local_sites.values()):
        return describe_tables(federation, Settings.max_bins)


def describe_plan() -> RequestPlan:
    """Return the requests of ``describe_tables``; sites may refuse to describe their own rows."""
    return RequestPlan((CountGrid, CountFine, CountCodes), settings="describing")


def describe_tables(federation: Federation, max_bins: int) -> TableOne:
    """Describe the training rows of all sites, and of each site whose policy allows it."""
    schema = federation.schema
    if federation.columns is not None:
        raise InputError("Table 1 is for sites that hold rows; parties hold columns of the same rows")
    values = count_values(federation, schema, max_bins)
    blob, coded = federation.blob(schema.to_json().encode()), _coded(schema)
    cells = [1, *(_n_cells(one) for _, one in coded)]
    total: CodeCounts = federation.total(
        CountCodes(schema=blob), check=counts_of(counts=(sum(cells),)), most=int(values.coarse.label.sum())
    )
    [(rows,), *counted] = np.split(total.counts, np.cumsum(cells)[:-1])
    by_place = dict(zip([f for f, _ in coded], counted, strict=True))
    overall = []
    for f, feature in enumerate(columns_of(schema)):
        if feature.categorical:
            overall.append(_of_counts(hide_few(by_place[f])))
        elif f in by_place:  # between the schema's edges only
            overall.append(Numbers(_shown(int(by_place[f][0]))))
        else:
            overall.append(_of_cells(*_cells(values, f), int(rows)))
    refusing = refusals(federation, RequestPlan((DescribeRows,), settings="describing sites", tasks=0))
    willing = [site for site in federation.active if site not in refusing]
    replies = _ask_sites(federation, blob, willing)
    at_sites = {site: _of_site(reply, schema) for site, reply in replies.items()}
    lines = []
    for f, feature in enumerate(columns_of(schema)):
        found = {site: numbers[f] for site, numbers in at_sites.items()}
        known = [_label_of(schema, feature, c) for c in range(feature.n_codes)] if feature.categorical else None
        names = None if known is None else tuple(known)
        lines.append(Line(feature.name, names, {OVERALL: overall[f], **found}, _difference(replies, found)))
    rows_at = {OVERALL: int(rows), **{site: reply.rows for site, reply in replies.items()}}
    return TableOne(rows_at, lines, [site for site in federation.active if site not in replies])


def _label_of(schema: Schema, feature: Feature, code: int) -> str:
    names = feature.categories or ()
    return names[code] if code < len(names) else "other"


def _ask_sites(federation: Federation, blob: Blob, willing: Sequence[str]) -> dict[str, SiteNumbers]:
    """Request the numbers of willing sites."""
    if not willing:
        return {}
    columns = columns_of(federation.schema)
    categories = sum(one.n_codes for one in columns if one.categorical)

    def check(site: str, reply: SiteNumbers) -> None:
        missing, numbers, counts = reply.missing, reply.numbers, reply.counts
        reject(missing.shape != (len(columns),) or missing.dtype != np.int64, "its missing values do not match")
        reject(numbers.shape != (len(columns), 2 + len(QUANTILES)) or numbers.dtype != np.float64, "its numbers do not")
        reject(counts.shape != (categories,) or counts.dtype != np.int64, "its counts do not match")
        if np.isinf(numbers).any() or min(missing.min(), counts.min(initial=0)) < HIDDEN or reply.rows < 1:
            raise FormatError("its numbers are not possible")

    return federation.ask(DescribeRows(schema=blob), to=willing, check=check)


def _shown(count: int) -> int | None:
    return None if count == HIDDEN or 0 < count < FLOOR else count


def _of_counts(shown: np.ndarray) -> Numbers:
    """Return the disclosed counts, with small ones hidden; the first counts missing values."""
    missing, *counts = (None if n == HIDDEN else int(n) for n in shown.tolist())
    return Numbers(missing, counts=tuple(counts))


def _of_site(reply: SiteNumbers, schema: Schema) -> list[Numbers]:
    """Return a site's numbers, column by column."""
    found, start = [], 0
    for feature, missing, numbers in zip(
        columns_of(schema), reply.missing.tolist(), reply.numbers.tolist(), strict=True
    ):
        if feature.categorical:
            counts = reply.counts[start : start + feature.n_codes]
            start += feature.n_codes
            found.append(_of_counts(np.concatenate([[missing], counts])))
        else:
            mean, deviation, *quartiles = (None if np.isnan(x) else float(x) for x in numbers)
            found.append(Numbers(None if missing == HIDDEN else missing, mean, deviation, tuple(quartiles)))
    return found


def _cells(values: ValueCounts, f: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a value for each occupied cell of a column, and its rows.

    A cell's upper end is a round number and belongs to the cell. So if all narrow cells end at whole numbers, the
    column has whole numbers, which are the upper ends; otherwise cells are represented by their middles.
    """
    if f == len(values.schema.features):
        grid = Grid.for_columns(1)
        low, high, rows = occupied_cells(_label_cells(values), NONE_HEAVY, np.zeros(0, np.int32), grid)
        narrow = np.zeros(len(low), np.bool_)
    else:
        grid = values.grid
        low, high, rows = occupied_cells(*values.of(f), grid)
        narrow = high.astype(np.int64) - low < (1 << grid.coarse) - 1
    ends = np.stack([grid_values(image).astype(np.float64) for image in (low, high)])
    whole = narrow.any() and bool((ends[1][narrow] == np.round(ends[1][narrow])).all())
    return np.where(whole | (ends[1] == 0), ends[1], ends.mean(axis=0)), rows


def _of_cells(values: np.ndarray, counts: np.ndarray, rows: int) -> Numbers:
    """Return the description of a column from its cell counts."""
    n = int(counts.sum())
    missing = _shown(max(rows - n, 0))
    if n < FLOOR:
        return Numbers(missing, quartiles=(None,) * len(QUANTILES))
    up_to, mean = np.cumsum(counts), float(values @ counts / n)
    deviation = float(np.sqrt(counts @ (values - mean) ** 2 / (n - 1)))
    if len(counts) <= FLOOR and counts.min() < FLOOR:
        mean = deviation = np.nan  # as at a site
    places = [np.searchsorted(up_to, q * n) if n * min(q, 1 - q) >= FLOOR else None for q in QUANTILES]
    numbers = [mean, deviation, *(None if place is None else float(values[place]) for place in places)]
    short = [None if x is None or np.isnan(x) else float(f"{x:.{_DIGITS}g}") for x in numbers]
    return Numbers(missing, short[0], short[1], tuple(short[2:]))


# -- how much sites differ
def _difference(replies: Mapping[str, SiteNumbers], found: Mapping[str, Numbers]) -> float | None:
    """Return the largest standardised difference between two sites; None if nothing can be compared."""
    known = list(found)
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    apart = [_apart(found[a], found[b], replies[a].rows, replies[b].rows) for a, b in pairs]
    return max((one for one in apart if one is not None), default=None)


def _apart(a: Numbers, b: Numbers, rows_a: int, rows_b: int) -> float | None:
    """Return the standardised difference of a column between two sites.

    For numbers, the difference of means in units of the pooled standard deviation; for categories, the Mahalanobis
    distance of their shares (Yang and Dalton 2012). Categories that either site hides count as one.
    """
    if a.mean is not None and b.mean is not None and a.deviation is not None and b.deviation is not None:
        pooled = np.sqrt((a.deviation**2 + b.deviation**2) / 2)
        return None if not pooled else round(float(abs(a.mean - b.mean) / pooled), 3)
    if not a.counts:
        return None
    shares = []
    for one, rows in ((a, rows_a), (b, rows_b)):
        both = [x for x, y, z in zip(one.counts, a.counts, b.counts, strict=True) if y is not None and z is not None]
        known = np.array([x for x in both if x is not None], np.float64)
        rest = max(0.0, rows - (one.missing or 0) - known.sum())
        total = known.sum() + rest
        if not total:
            return None
        shares.append(np.append(known, rest) / total)
    p, q = (share[: len(share) - 1] if not shares[0][-1] and not shares[1][-1] else share for share in shares)
    p, q = p[:-1], q[:-1]  # shares sum to one
    covariance = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
    return round(float(np.sqrt(max(0.0, (p - q) @ np.linalg.pinv(covariance) @ (p - q)))), 3)
