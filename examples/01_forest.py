"""One table, one forest: fit, evaluate, explain, save.

Run it with ``python examples/01_forest.py``.
"""

import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import silvan as sv

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
print(f"breast cancer: {len(X_train)} training rows, {len(X_test)} test rows, {X.shape[1]} columns")
print("growing 100 trees (the first run compiles kernels, which takes about 15 seconds) ...")

model = sv.ForestClassifier(oob_score=True).fit(X_train, y_train)
peer = RandomForestClassifier(min_samples_leaf=2, random_state=0).fit(X_train, y_train)

print(f"AUC of silvan        {roc_auc_score(y_test, model.predict_proba(X_test)[:, 1]):.4f}")
print(f"AUC of scikit-learn  {roc_auc_score(y_test, peer.predict_proba(X_test)[:, 1]):.4f}")
print(f"accuracy out of bag  {model.oob_score_:.4f}")

print("\nmost important columns:")
ranked = sorted(model.forest_.importances().items(), key=lambda item: -item[1])
for name, share in ranked[:5]:
    print(f"  {name:24} {share:6.1%} {'#' * round(100 * share)}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "breast_cancer.silvan"
    model.forest_.save(path)
    again = sv.Forest.load(path)
    assert (again.predict(X_test) == model.predict(X_test)).all()  # noqa: S101
    print(f"\nsaved and read back: {again}, {path.stat().st_size // 1024} KiB")
