"""Differencing is tried on every kind of sums, and ends with a finding."""

from helpers.studies import federate, parts, table

from silvan.auditing.differencing import difference_sums


def test_masked_sums_over_too_few_sites_are_a_finding():
    """If one of three sites is missing, there is no masked sum to compare with."""
    finding = difference_sums(federate(parts(table("binary", n=120), 3), sums="masked"))
    assert finding.value == 0.0
    assert "cannot be made" in finding.note
