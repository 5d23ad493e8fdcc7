"""Patient-site assignment: find the site of a patient whose row is known (the sneaky site of the BOFRF paper, III-C).

The attacker is a site that sends two trees which differ only on that row, and has them scored. At the patient's site,
one row then changes sides. So the question is what reaches the one who adds up the scores: with "trusted" sums each
site's own matrix; with "ring" or "masked" sums nothing about a single site, and the attacker can only guess. In any
case the sum shows whether some site has the patient; only noise removes this one bit.

The metric is the share of patients whose site is identified, minus one over the number of sites; chance is 0.
"""

import numpy as np

from silvan.algorithms.bofrf.weigh import ScoreTrees, TreeScores
from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.auditing.findings import ATTACKS, Finding, share
from silvan.auditing.rehearsal import rehearse, sign_as, tap_of
from silvan.data.schema import Schema
from silvan.errors import FederationError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest, join_forests
from silvan.util.readable import count_of

PATIENTS = 20


def assign_patients(federation: Federation, seed: int = 0) -> Finding:
    """Look for patients; for comparison, also with "trusted" sums at a curious third party."""
    base = ATTACKS["assignment"]
    if not federation.schema.n_classes or len(federation.active) < 2:
        return base.not_run("needs classes, and two sites or more")
    if all(f.categorical for f in federation.schema.features):
        return base.not_run("there are no numeric columns for boxes")
    seen, n, _ = _find_patients(federation, seed, "trusted")
    hits, n, note = _find_patients(federation, seed)
    chance = 1.0 / len(federation.active)
    value, low, high = share(round(hits), n)
    # an attacker who sees nothing is right for one in k patients, taken in expectation
    exact = hits / n - chance
    measured = (exact, exact, exact) if note else (exact, low - chance, high - chance)
    note = note or f"{value:.0%} of patients found at {count_of(len(federation.active), 'site')}"
    return base.with_result(measured, n, note).with_undefended(base.with_result((seen / n - chance, 0.0, 0.0), n))


def _find_patients(original: Federation, seed: int, sums: str | None = None) -> tuple[float, int, str]:
    """Return the number of patients found, the number searched for, and the reason if none was found."""
    federation = rehearse(original, sums)
    rng, schema = np.random.default_rng(seed), federation.schema
    patients = []
    for name in federation.active:
        part = federation.site(name).part(schema)
        chosen = rng.permutation(len(part))[: max(1, PATIENTS // len(federation.active))]
        patients += [(name, part.X[row], int(part.y[row])) for row in chosen]
    k = len(federation.active)
    baits = [bait(schema, row, says) for _, row, label in patients for says in (label, (label + 1) % schema.n_classes)]
    attacker = federation.active[-1]
    sent = sign_as(federation, attacker, Trees(forest=join_forests(baits).to_bytes(), rows=0))
    request = ScoreTrees(
        schema=federation.blob(schema.to_json().encode()),
        forests=[federation.work(attacker, sent)],
        validation=0.0,
        offset=0.0,
        scale=1.0,
    )
    try:
        federation.total(request)
    except FederationError:
        return len(patients) / k, len(patients), "sites refuse to score trees"
    replies = tap_of(federation).sent
    seen = {e.sender: wire.decode(e.body, TreeScores) for _, e in replies if e.kind == "TreeScores"}
    if set(seen) != set(federation.active):
        return (
            len(patients) / k,
            len(patients),
            "no site's own scores can be read, only that some site has the patients",
        )
    hits = 0.0
    for i, (home, _, _) in enumerate(patients):
        change = {site: int(np.abs(s.counts[2 * i + 1] - s.counts[2 * i]).sum()) for site, s in seen.items()}
        suspects = [site for site, moved in change.items() if moved]
        hits += (home in suspects) / len(suspects) if suspects else 1 / k
    return hits, len(patients), ""


def bait(schema: Schema, row: np.ndarray, says: int) -> Forest:
    """Make a tree that predicts one class everywhere, except ``says`` in a small box around a row."""
    conditions: list[tuple[int, float, bool]] = []  # column, threshold, whether the row goes left
    for f, feature in enumerate(schema.features):
        if feature.categorical or np.isnan(row[f]):
            continue
        value = np.float32(row[f])
        conditions.append((f, float(value), True))
        conditions.append((f, float(np.nextafter(value, np.float32(-np.inf))), False))
    # a chain: below each condition there is a leaf for everybody else, and the next condition
    n_nodes = 2 * len(conditions) + 1
    features, threshold = np.full(n_nodes, -1, np.int32), np.zeros(n_nodes, np.float32)
    at, everybody = 0, (says + 1) % schema.n_classes if schema.n_classes > 2 else 0
    for i, (f, cut, left) in enumerate(conditions):
        features[at], threshold[at] = f, cut
        at = 2 * i + (1 if left else 2)
    leaves = np.flatnonzero(features < 0)
    return Forest(
        schema=schema,
        offsets=np.array([0, n_nodes]),
        feature=features,
        threshold=threshold,
        missing_left=np.zeros(n_nodes, np.bool_),
        sets=np.zeros((0, SET_WORDS), np.uint64),
        value=np.eye(schema.n_classes)[np.where(leaves == at, says, everybody)],
        weights=np.ones(1),
    )
