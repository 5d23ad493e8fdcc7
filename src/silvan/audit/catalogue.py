"""The attacks by name: what the attacker has, what the figure is, what chance gives."""

from silvan.audit.finding import Finding

_KNOWN = (
    Finding(
        "membership",
        "Membership, by confidence",
        "answers of the forest; a person's row and label",
        "AUC, members against others",
        chance=0.5,
    ),
    Finding(
        "support",
        "Membership, by leaf support",
        "the trees; a person's row and label",
        "AUC, members against others",
        chance=0.5,
    ),
    Finding(
        "attribute",
        "Attribute guess from leaves",
        "the trees; all of a person but one attribute",
        "right more often for members than for others",
        chance=0.0,
    ),
    Finding("lonely", "Single-record leaves", "the trees", "leaves that rest on one row", chance=0.0),
    Finding(
        "thresholds",
        "Exact-value thresholds",
        "the trees; all rows but one",
        "thresholds that give one row's value away, beyond coincidence",
        chance=0.0,
    ),
    Finding(
        "ranges",
        "Reconstruction from boxes",
        "the trees; how many rows there are",
        "cells rebuilt, of those that guesses from the population miss",
        chance=0.0,
    ),
    Finding(
        "reconstruction",
        "Reconstruction from counts",
        "the trees; how many rows there are; yes/no columns",
        "cells rebuilt, of those that guesses from the population miss",
        chance=0.0,
    ),
    Finding(
        "assignment",
        "Patient-site assignment",
        "whatever reaches whoever adds; a patient's row",
        "patients whose site is found, beyond guesses",
        chance=0.0,
    ),
    Finding(
        "differencing",
        "Two sums that differ by one site",
        "the coordinator's role; no part of a sum",
        "counts of one site that are read off",
        chance=0.0,
    ),
    Finding(
        "labels",
        "Labels from partitions",
        "row partitions that a party is sent; no label",
        "rows put on the right side of two, mean of both classes",
        chance=0.5,
    ),
    Finding(
        "backdoor",
        "Backdoored trees",
        "one site, which sends what it likes",
        "rows that a trigger turns, beyond those that it turns anyway",
        chance=0.0,
    ),
)

ATTACKS = {one.attack: one for one in _KNOWN}
