"""Parties on separate machines: tables about the same people, site folders, and what happened to their shares."""

import csv

import msgspec
from helpers.column_studies import ID, wide

import silvan as sv
from silvan.algorithms.vertical.linear_shares import LinearShare, linear_key
from silvan.algorithms.vertical.party_shares import share_key
from silvan.deploy.membership.joined_site import SETTINGS, JoinedSite
from silvan.forest.forest_shares import Share
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import SHARES
from silvan.study.study_file import make_learner

PARTIES, HOLDER = ("bank", "lab", "shop"), "bank"
IDS = {"bank": ID, "lab": ID, "shop": "client"}
"""What each party calls its column of ids."""


def tables(n=150, seed=0, label=True):
    """Returns columns of the same people by party, in different order; a few people are missing at some parties."""
    frame = wide(n=n, seed=seed)
    names = [name for name in frame.columns if name not in (ID, "label")]
    dealt = {}
    for k, party in enumerate(PARTIES):
        own = [*names[k::3], *(["label"] if party == HOLDER and label else [])]
        some = frame.select(ID, *own).sample(fraction=1.0, shuffle=True, seed=k)
        dealt[party] = some.filter(some[ID] % 29 != k).rename({ID: IDS[party]})
    return dealt


def write_tables(folder, made):
    """Writes every party's table, and returns the paths."""
    folder.mkdir(exist_ok=True)
    paths = {party: folder / f"{party}.csv" for party in made}
    for party, table in made.items():
        table.write_csv(paths[party])
    return {party: str(path) for party, path in paths.items()}


def set_up(member, table, new=None, policy="", **more):
    """Writes what a party's owner would: the table, the column of ids, and the table of new rows."""
    settings = {"table": table, "id": IDS[member.name], **({} if new is None else {"predict": new}), **more}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in settings.items() if value is not None]
    (member.path / SETTINGS).write_text("\n".join(lines) + f"\n[policy]\n{policy}\n")


def study(name, kind="VerticalForest", more="", **parameters):
    """Returns a study over the columns of all parties."""
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in {"kind": kind, **parameters}.items()]
    sites = msgspec.json.encode(PARTIES).decode()
    top = f'name = "{name}"\ntest = 0.25\ntask = "classification"\nsites = {sites}\n{more}'
    return parse_remote_study(f"{top}\n[learner]\n" + "\n".join(lines) + "\n")


def in_process(made, plan=None, **settings):
    """Makes the federation in one process; with a study, fits its learner."""
    named = {party: table.rename({IDS[party]: ID}) for party, table in made.items()}
    if plan is None:
        return sv.federate_columns(named, id=ID, **settings)
    fed = sv.federate_columns(named, id=ID, label="label", test=0.25, **settings)
    return make_learner(plan, fed.schema).fit(fed), fed


def load_with_shares(run, plan, members):
    """Reads a model of a run, and adds the shares in the parties' folders."""
    kind = getattr(sv, plan.kind)
    model = kind.load(run.file(SHARES))
    assert model.shares_ == {}
    forest = plan.kind == "VerticalForest"
    parts = model.structure_ if forest else model.model_
    key, read = (share_key, Share.from_bytes) if forest else (linear_key, LinearShare.from_bytes)
    shares = {party: read(JoinedSite(members[party].path).store.get(key(parts.model))) for party in PARTIES}
    model.keep(parts, shares)
    return model


def read_predictions(member):
    """Reads the one file of predictions in a party's folder: the column of ids, and one line per id."""
    (path,) = (member.path / "predictions").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    lines = list(csv.DictReader(path.read_text().splitlines()))
    return {int(line[ID]): line for line in lines}
