"""The sneaky site of the publication (section III-C): tables with one known patient, and trees that differ on them."""

import numpy as np
import polars as pl
from helpers.ownership import work_of

import silvan as sv
from silvan.algorithms.bofrf.weigh import ScoreTrees
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest, join_forests

PATIENT = {"age": 71.5, "dose": 3.25, "label": "yes"}
SITES = ("sneaky", "north", "south", "west")
SCHEMA = sv.Schema.of(["age", "dose"], sv.Label("label", ("no", "yes")))


def tables(home):
    """Tables of all sites, identical except for where the patient is."""
    rng = np.random.default_rng(0)
    frames = {}
    for site in SITES:
        n = 40 - (site == home)  # the same number of rows everywhere, so that counts reveal nothing
        age, dose = rng.integers(20, 70, 40)[:n] + 0.25, rng.integers(1, 6, 40)[:n] + 0.5
        frame = pl.DataFrame({"age": age, "dose": dose, "label": rng.choice(["no", "yes"], 40)[:n]})
        frames[site] = pl.concat([frame, pl.DataFrame([PATIENT])]) if site == home else frame
    return frames


def bait(answer):
    """A tree that says "no" for everybody except the patient: boxes around one known row."""
    low = {name: np.float32(value) - np.float32(0.125) for name, value in PATIENT.items() if name != "label"}
    high = {name: np.float32(value) + np.float32(0.125) for name, value in PATIENT.items() if name != "label"}
    leaf = [1.0, 0.0] if answer == "no" else [0.0, 1.0]
    return Forest(
        schema=SCHEMA,
        offsets=[0, 9],
        feature=[0, -1, 0, 1, -1, -1, 1, -1, -1],  # age above, age below, dose above, dose below
        threshold=[low["age"], 0, high["age"], low["dose"], 0, 0, high["dose"], 0, 0],
        missing_left=np.zeros(9, bool),
        sets=np.zeros((0, SET_WORDS)),
        value=[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], leaf, [1.0, 0.0]],
        weights=[1.0],
    )


TREES = join_forests([bait("no"), bait("yes")])


def score_trees(fed, trees=TREES, validation=0.0):
    """Asks for scores of trees, by default of the sneaky site's two."""
    return ScoreTrees(
        schema=fed.blob(SCHEMA.to_json().encode()),
        forests=[work_of(fed, SITES[0], trees.to_bytes())],
        validation=validation,
        offset=0.0,
        scale=1.0,
    )
