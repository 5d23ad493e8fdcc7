"""Attacks on vertical studies succeed with the protection switched off; ``test_attacks.py`` runs them with it on."""

import msgspec
import pytest
from experiments.attacks import columns_of_others, foreign_labels, malleable_sums

pytest.importorskip("gmpy2", reason="no gmpy2, so encrypted labels are not tested; pip install 'silvan[vertical]'")


def test_unsigned_labels_reveal_columns_of_a_party():
    assert foreign_labels.unprotected(48) == 48


def test_a_colluding_label_holder_reveals_columns_unless_the_text_names_it():
    assert foreign_labels.rows_read(48, signer="spy") == 48  # tests/attacks/test_attacks.py names the holder


@pytest.mark.parametrize("each", [True, False])
def test_changed_sums_reveal_labels_unless_signed(each):
    """One decision per level is not enough: a coordinator may begin a task for each row."""
    assert malleable_sums.unprotected(40, each=each) == 40


def test_requests_about_other_columns_would_be_detected():
    request = columns_of_others.asked_of_shop(60, "encoded", 2)[0]
    told = msgspec.structs.replace(request, ground=msgspec.structs.replace(request.ground, width=45))
    assert columns_of_others.found_in([request]) == 0
    assert columns_of_others.found_in([told]) == 1
