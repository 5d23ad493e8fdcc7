"""Numbers and names as text for people."""

import pytest

from silvan.util.readable import format_bytes, format_count, format_names, format_time, signed


def test_names_are_cut_short():
    assert format_names(["a"]) == "'a'"
    assert format_names(["a", "b", "c"], most=2) == "'a', 'b' and 1 more"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (format_count(0), "no"),
        (format_count(12), "twelve"),
        (format_count(1300), "1,300"),
        (format_bytes(999), "999 bytes"),
        (format_bytes(1500), "1.5 KB"),
        (format_bytes(2e12), "2000 GB"),
        (format_time(0.2), "1 s"),
        (format_time(61), "1 min 01 s"),
        (format_time(3720), "1 h 02 min"),
        (signed(0.001, 2), "±0.00"),
        (signed(-0.5, 1), "−0.5"),
    ],
)
def test_numbers(text, wanted):
    assert text == wanted
