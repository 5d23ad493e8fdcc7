"""Tables of visits: patients with several similar rows each, and labels that nothing can predict."""

import numpy as np
import polars as pl

SITES = "abc"


def visits(seed=0, patients=80, each=3, columns=5):
    """Returns one table per site: the label is a coin flip per patient, and a patient's visits differ little."""
    rng = np.random.default_rng(seed)
    return {site: one_site(rng, site, np.full(patients, each), columns) for site in SITES}


def one_site(rng, site, each, columns=5):
    """Returns a table in which the i-th patient has ``each[i]`` visits, in any order."""
    who = rng.permutation(np.repeat(np.arange(len(each)), each))
    looks, label = rng.normal(size=(len(each), columns)), rng.integers(0, 2, len(each))
    named = {f"x{i}": looks[who, i] + rng.normal(size=len(who)) / 50 for i in range(columns)}
    return pl.DataFrame({"patient": [f"{site}{i}" for i in who], **named, "label": label[who]})
