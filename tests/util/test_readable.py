"""Numbers and names as text for people."""

import pytest

from silvan.util.readable import (
    digits_of,
    format_bytes,
    format_count,
    format_names,
    format_number,
    format_time,
    signed,
)


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
        (format_number(131072), "131,072"),
        (format_number(-12345.67), "-12,346"),
        (format_number(1234.56), "1235"),
        (format_number(0.00012345), "0.0001234"),
        (f"{8761.3:.{digits_of(8761.3)}f}", "8761"),
        (f"{55.43:.{digits_of(60.0)}f}", "55.43"),
        (f"{0.000894:.{digits_of(0.00119)}f}", "0.00089"),
        (f"{0.0:.{digits_of(0.0)}f}", "0.000"),
    ],
)
def test_numbers(text, wanted):
    assert text == wanted
