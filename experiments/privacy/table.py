"""Make the tables of the README from the files of results.

python -m experiments.privacy.table
"""

import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from experiments.privacy.lines import EPSILONS, Lines

HERE = Path(__file__).parent
ROWS = {"Telco": 5634, "Adult": 39074, "spambase": 3681, "Pima": 614, "covertype": 16000}
"""Rows to learn from."""

OURS = "tables, total, 4 sites"
FORMS = {
    OURS: "**tables**, noise on the total",
    "levels": "levels, noise on the total, tuned",
    "input": "input",
}
PEERS = {"tuned": "diffprivlib, tuned", "default": "diffprivlib, default"}
PLACES = {
    OURS: "once on the total",
    "tables, site, 4 sites": "at each of 4 sites",
    "tables, site, 10 sites": "at each of 10 sites",
}
FEW = 100
"""Rows times epsilon below which a tie counts as reached."""


class Results:
    """Results of all methods, by table, method and epsilon: one for each split."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)
        for file in ("forests.csv", "peer.csv"):
            for (table, form, epsilon, split), line in Lines(HERE / file).found.items():
                if split < 100:
                    self.found[table, form, epsilon][split] = line.auc

    def cell(self, table: str, form: str, epsilon: float, *, bold: bool = False) -> str:
        """Show mean and standard deviation over splits."""
        figures = list(self.found[table, form, epsilon].values())
        if not figures:
            return "-"
        text = f"{np.mean(figures):.3f}"
        return f"**{text}** ± {np.std(figures):.3f}" if bold else f"{text} ± {np.std(figures):.3f}"

    def ahead(self, table: str, peer: str, epsilon: float) -> tuple[float, float, int]:
        """Return the lead of our form on common splits: mean, its standard error, and their number."""
        ours, theirs = self.found[table, OURS, epsilon], self.found[table, peer, epsilon]
        both = np.array([ours[split] - theirs[split] for split in sorted(ours.keys() & theirs.keys())])
        if len(both) < 2:
            return float("nan"), float("nan"), len(both)
        return float(both.mean()), float(both.std(ddof=1) / np.sqrt(len(both))), len(both)


def rows(header: list[str], body: list[list[str]]) -> str:
    """Write a table."""
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracy(results: Results) -> str:
    """Compare methods, table by table."""
    body = []
    for table, n in ROWS.items():
        exact = results.cell(table, "without noise", 0.0)
        body.append([f"**{table}**, {n:,} rows, without noise {exact}", *[""] * len(EPSILONS)])
        for form, text in (FORMS | PEERS).items():
            body.append([text, *(results.cell(table, form, e, bold=form == OURS) for e in EPSILONS)])
    return rows(["epsilon", *(f"{e:g}" for e in EPSILONS)], body)


def goal(results: Results) -> str:
    """Describe the lead of the form of tables over the better of the two peers, and where it is behind."""
    body, missed, ties, near_ones = [], [], [], []
    for table, n in ROWS.items():
        line = [table]
        for epsilon in EPSILONS:
            found = [results.ahead(table, peer, epsilon) for peer in PEERS]
            mean, error, _ = min(found)
            line.append(f"{mean:+.3f} ± {error:.3f}")
            if not mean > 0:
                near = n * epsilon < FEW and abs(mean) < 2 * error
                (ties if near else missed).append(f"{table} at {epsilon:g}")
            elif mean < 2 * error:
                near_ones.append(f"{table} at {epsilon:g}")
        body.append(line)
    counts = [len(f) for key, f in results.found.items() if key[1] == OURS]
    splits = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    said = f"Splits: {splits}. Missed: {', '.join(missed) or 'in no cell'}."
    if near_ones:
        said += f" Ahead by less than two standard errors: {', '.join(near_ones)}."
    if ties:
        said += f" Ties (behind by less than two errors) below {FEW} rows times epsilon: {', '.join(ties)}."
    return rows(["epsilon", *(f"{e:g}" for e in EPSILONS)], body) + f"\n\n{said}"


def places(results: Results) -> str:
    """Compare where noise is added."""
    body = []
    for table in ROWS:
        for form, text in PLACES.items():
            body.append([table, text, *(results.cell(table, form, e) for e in EPSILONS)])
    for form, text in PLACES.items():
        means = [np.mean([np.mean([*results.found[t, form, e].values()]) for t in ROWS]) for e in EPSILONS]
        body.append(["**mean**", text, *(f"**{mean:.3f}**" for mean in means)])
    return rows(["", "noise", *(f"{e:g}" for e in EPSILONS)], body)


def chosen() -> str:
    """List what was chosen on other splits."""
    body = []
    for file, form in (("peer.csv", "tuned"), ("forests.csv", "levels")):
        lines = Lines(HERE / file).found
        for table in ROWS:
            texts = [{x.chosen for k, x in lines.items() if k[:3] == (table, form, e)} for e in EPSILONS]
            short = [" / ".join(sorted(map(_short, text))) or "-" for text in texts]
            body.append([table, "diffprivlib" if form == "tuned" else "levels", *short])
    return rows(["", "", *(f"{e:g}" for e in EPSILONS)], body)


def _short(text: str) -> str:
    if "=" in text:
        given = dict(part.split("=") for part in text.split())
        features = {"None": "all", "sqrt": "sqrt"}.get(given["max_features"], given["max_features"])
        return f"{given['n_estimators']} x {given['max_depth']}, {features} features"
    return text.replace(" trees of depth ", " x ").replace("categories as ", "")


def bounds() -> str:
    """Show the empirical lower bounds on epsilon."""
    body = []
    with (HERE / "epsilon.csv").open(newline="") as file:
        found = sorted(csv.DictReader(file), key=lambda r: (r["account"] != "right", float(r["claimed"]), r["task"]))
        for row in found:
            above = float(row["at least"]) > float(row["claimed"])
            verdict = "**refuted**" if above else "not refuted"
            names = ("account", "mechanism", "task", "noise", "counters", "draws", "claimed", "at least")
            body.append([*(row[name] for name in names), verdict])
    header = ["account", "mechanism", "label", "noise", "counters that differ", "draws", "claimed", "at least", ""]
    return rows(header, body)


def main() -> None:
    """Put the tables into the README, each between its marks."""
    results, page = Results(), HERE / "README.md"
    made = {
        "accuracy": accuracy(results),
        "goal": goal(results),
        "places": places(results),
        "chosen": chosen(),
        "bounds": bounds(),
    }
    text = page.read_text()
    for name, table in made.items():
        text, n = re.subn(
            rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.S
        )
        if n != 1:
            raise ValueError(f"README.md has no place for {name}")
    page.write_text(text)


if __name__ == "__main__":
    main()
