"""Asks whether sites have a column in different units: where their values hardly overlap, and one factor explains it.

What one unit is of another is a factor for all values of a column, so that the values of two sites lie apart as a
whole. Sites whose patients differ have values that overlap, whatever the ratio of their medians. Zeros are left out:
they are zeros in all units, and how many there are says nothing of the unit.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log

import numpy as np

from silvan.util.readable import format_number, list_some

_FACTORS = {
    2.2046: "pounds and kilograms",
    2.54: "centimetres and inches",
    7.5: "mmHg and kPa",
    10.0: "such as millimetres and centimetres",
    12.0: "months and years",
    17.1: "bilirubin in µmol/l and mg/dl",
    18.0: "glucose in mg/dl and mmol/l",
    38.67: "cholesterol in mg/dl and mmol/l",
    60.0: "such as minutes and hours",
    88.4: "creatinine in µmol/l and mg/dl",
    100.0: "such as centimetres and metres",
    365.25: "days and years",
    1000.0: "such as grams and kilograms",
}
"""What one unit is of another, of those in common use."""

_GAP = 0.4  # logarithms of medians that are so far apart, with none between them, are of two groups of sites
_APART, _WHOLLY_APART = 0.9, 0.95
"""How far the distributions of two groups must differ (Kolmogorov and Smirnov's distance)."""

_ALIKE = 0.35  # how far they may differ once the factor is taken out
_NEAR = 0.2  # how far the logarithm of a ratio may be from that of a factor
_LARGE = 5.0  # a ratio that is asked about whether or not it is a known factor, if the groups are wholly apart
_MOST = 1e300  # larger numbers count as this, so that two of them have a mean
_Group = dict[str, np.ndarray]

_BODY = (34.0, 41.0)
"""Medians, in degrees Celsius, of the temperature of a body; other temperatures are known by the column's name."""

_WARMTH = re.compile("temperature|(?<![a-z])temp(?![a-z])", re.IGNORECASE)


def ask_about_units(name: str, spreads: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a line for each group of sites that may have a column in another unit than most.

    ``spreads`` are quantiles of the column's values other than zero, as many at every site.
    """
    with np.errstate(over="ignore"):  # beyond all numbers is far apart too
        groups = _groups({site: np.clip(spread, -_MOST, _MOST) for site, spread in spreads.items()})
        most = max(range(len(groups)), key=lambda place: len(groups[place]))
        pairs = [(min(place, most), max(place, most)) for place in range(len(groups)) if place != most]
        return [line for low, high in pairs for line in _question(name, groups[low], groups[high])]


def _groups(spreads: _Group) -> list[_Group]:
    """Return sites in groups by the sizes of their values, from small to large."""
    medians = {site: log(float(np.median(np.abs(spread)))) for site, spread in spreads.items()}
    order = sorted(medians, key=lambda site: medians[site])
    steps = np.diff([medians[site] for site in order])
    least = max(_GAP, steps.max(initial=0.0) / 3)  # beside a large gap, small ones are those between people
    starts = [0, *(np.flatnonzero(steps >= least) + 1), len(order)]
    return [{s: spread for s, spread in spreads.items() if s in order[a:b]} for a, b in pairwise(starts)]


def _question(name: str, low: _Group, high: _Group) -> list[str]:
    """Return a line if the values of two groups of sites are as apart as units are."""
    below, above = np.concatenate(list(low.values())), np.concatenate(list(high.values()))
    small, large = np.abs(below), np.abs(above)
    ratio, apart = float(np.median(large) / np.median(small)), _distance(small, large)
    by_nearness = sorted(_FACTORS, key=lambda factor: abs(log(ratio / factor)))
    near = [factor for factor in by_nearness if abs(log(ratio / factor)) < _NEAR][:2]
    middle, warm = float(np.median(below)), float(np.median(above))
    degrees = all(_BODY[0] < celsius < _BODY[1] for celsius in (middle, (warm - 32) / 1.8)) or _WARMTH.search(name)
    if degrees and apart >= _APART and _distance(below * 1.8 + 32, above) <= _ALIKE:
        what = "as degrees Celsius and Fahrenheit are"
    elif (apart >= _APART and near and _distance(small * near[0], large) <= _ALIKE) or (
        apart >= _WHOLLY_APART and ratio > _LARGE
    ):
        known = " or ".join(f"{factor:g} ({_FACTORS[factor]})" for factor in near)
        what = f"{ratio:.3g} times as much" + (f", near {known}" if near else "")
    else:
        return []
    here, there = (list_some(list(group), "site", most=4) for group in (low, high))
    around = f"values are around {format_number(middle)} at {here} and around {format_number(warm)} at {there}"
    return [f"{name}: {around}, {what}; are the units the same?"]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference between the shares of two samples that are below any value."""
    ends = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(values), ends, "right") / len(values) for values in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())
