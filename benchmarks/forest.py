"""Is one forest on one table as fast and as good as the best centralised ones?"""

from collections.abc import Callable
from typing import Any

from sklearn.metrics import roc_auc_score

import silvan as sv
from benchmarks.common import Goal, Report, interleave, peak_memory, ratio, synthetic

ROWS, TEST_ROWS, TREES, DEPTH, FEATURES, BINS = 200_000, 50_000, 100, 8, 5, 64


def models(columns: int = 30) -> dict[str, Callable[[], Any]]:
    """Create each library's forest anew, with equivalent settings and two threads."""
    from lightgbm import LGBMClassifier
    from sklearn.ensemble import RandomForestClassifier
    from xgboost import XGBRFClassifier

    share = FEATURES / columns
    return {
        "silvan": lambda: sv.ForestClassifier(TREES, max_depth=DEPTH, max_features=FEATURES, max_bins=BINS, n_jobs=2),
        "XGBRF": lambda: XGBRFClassifier(
            n_estimators=TREES,
            max_depth=DEPTH,
            colsample_bynode=share,
            subsample=0.632,
            max_bin=BINS,
            reg_lambda=0,
            n_jobs=2,
        ),
        "LightGBM rf": lambda: LGBMClassifier(
            boosting_type="rf",
            n_estimators=TREES,
            max_depth=DEPTH,
            num_leaves=2**DEPTH,
            feature_fraction_bynode=share,
            bagging_fraction=0.632,
            bagging_freq=1,
            max_bin=BINS,
            n_jobs=2,
            verbose=-1,
        ),
        "scikit-learn": lambda: RandomForestClassifier(TREES, max_depth=DEPTH, max_features=FEATURES, n_jobs=2),
    }


def memory_job(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a small warm-up and the job whose memory counts."""
    X, y = synthetic(ROWS)
    make = models()[name]
    return lambda: make().fit(X[:2000], y[:2000]), lambda: make().fit(X, y)


def main() -> None:
    """Measure and report."""
    X, y = synthetic(ROWS + TEST_ROWS)
    X, y, X_test, y_test = X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]
    make = models()
    fitted: dict[str, Any] = {}
    for name in make:  # many rows take other code paths than few
        rows = len(X) if name == "silvan" else 2000
        make[name]().fit(X[:rows], y[:rows]).predict_proba(X_test[:2000])

    def fit(name: str) -> Callable[[], object]:
        return lambda: fitted.update({name: make[name]().fit(X, y)})

    turns = {"silvan": 5, "XGBRF": 5, "LightGBM rf": 3, "scikit-learn": 1}
    fit_times = interleave({name: fit(name) for name in make}, turns)

    def predict(name: str) -> Callable[[], object]:
        return lambda: fitted[name].predict_proba(X_test)

    predict_times = interleave({name: predict(name) for name in make}, 7)
    auc = {name: roc_auc_score(y_test, fitted[name].predict_proba(X_test)[:, 1]) for name in make}
    memory = {name: peak_memory("benchmarks.forest", name) for name in make if name != "scikit-learn"}

    report = Report(
        "One forest on one table",
        f"{ROWS:,} x 30 synthetic rows, {TREES} trees of depth {DEPTH}, {FEATURES} features a node, {BINS} bins, "
        "two threads, kernels warm; times interleaved, as multiples of XGBRF's in the same round, median "
        "(smallest-largest). Memory is the peak during fit above what was resident before.",
        ["", "fit", "predict 50,000 rows", "peak memory", "AUC"],
    )
    for name in make:
        report.rows.append(
            [
                name,
                ratio(fit_times, name, "XGBRF")[1],
                ratio(predict_times, name, "XGBRF")[1],
                f"{memory[name] / 2**20:.0f} MiB" if name in memory else "",
                f"{auc[name]:.4f}",
            ]
        )
    report.goals += [
        Goal("fit, times XGBRF", ratio(fit_times, "silvan", "XGBRF")[0], most=0.35),
        Goal("fit, times faster than scikit-learn", ratio(fit_times, "scikit-learn", "silvan")[0], least=10),
        Goal("prediction, times XGBRF", ratio(predict_times, "silvan", "XGBRF")[0], most=1.0),
        Goal("AUC below the best", max(auc.values()) - auc["silvan"], most=0.003),
        Goal("peak memory, times XGBRF", memory["silvan"] / memory["XGBRF"], most=2.0),
    ]
    _scaling(report)
    _deep(report)
    report.publish()


def _scaling(report: Report) -> None:
    X, y = synthetic(4 * ROWS)
    make = models()["silvan"]
    jobs = {"all": lambda: make().fit(X, y), "quarter": lambda: make().fit(X[:ROWS], y[:ROWS])}
    times = interleave(jobs, 5)
    report.goals.append(Goal("fit at 4 times the rows, times", ratio(times, "all", "quarter")[0], most=4.4))


def _deep(report: Report) -> None:
    from sklearn.ensemble import RandomForestClassifier

    rows = 50_000
    X, y = synthetic(rows + TEST_ROWS)
    settings = {"n_estimators": TREES, "max_features": FEATURES, "min_samples_leaf": 2, "n_jobs": 2}
    jobs: dict[str, Callable[[], Any]] = {
        "silvan": lambda: sv.ForestClassifier(**settings).fit(X[:rows], y[:rows]),
        "scikit-learn": lambda: RandomForestClassifier(**settings).fit(X[:rows], y[:rows]),
    }
    times = interleave(jobs, {"silvan": 5, "scikit-learn": 2})
    auc = {n: roc_auc_score(y[rows:], jobs[n]().predict_proba(X[rows:])[:, 1]) for n in jobs}
    report.goals.append(
        Goal(
            "max_depth=None, 50,000 rows: times faster than scikit-learn",
            ratio(times, "scikit-learn", "silvan")[0],
            least=3,
        )
    )
    report.notes.append(
        f"Without a depth limit (50,000 rows, min_samples_leaf=2) the AUC is {auc['silvan']:.4f}, "
        f"scikit-learn's {auc['scikit-learn']:.4f}."
    )


if __name__ == "__main__":
    main()
