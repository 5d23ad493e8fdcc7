"""Small versions of the attacks on documented claims: none learns more than the documents allow.

``python -m experiments.attacks`` runs them in full.
"""

import pytest
from experiments.attacks.__main__ import names, run


@pytest.mark.parametrize("name", names())
def test_attacks_learn_no_more_than_the_documents_allow(name):
    outcomes = run(name, small=True)
    assert outcomes, "an attack that says nothing of what it read"
    assert [outcome for outcome in outcomes if not outcome.held] == []
