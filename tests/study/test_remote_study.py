"""Study files for machines."""

import pytest

from silvan.errors import InputError
from silvan.study.remote_study import TIMEOUT, parse_remote_study

GOOD = 'name = "heart"\nlabel = "x"\n[learner]\nkind = "HistogramForest"\n'


def test_a_study():
    study = parse_remote_study(GOOD)
    assert (study.study.kind, study.timeout, study.quorum, study.sites) == ("HistogramForest", TIMEOUT, None, None)
    assert study.id.startswith("heart ")


def test_every_letter_counts():
    assert parse_remote_study(GOOD).id != parse_remote_study(GOOD + "\n").id


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('table = "x.csv"', "each site names its own table"),
        ('sites = "north"', "sites must be a list of names"),
        ('sites = ["a", "a"]', "sites must be a list of names"),
        ("quorum = 0", "quorum must be a whole number"),
        ("timeout = -1", "timeout must be seconds above 0"),
        ('id = "x"', "id is for .parties."),
        ("unheard = 1", "unheard"),
        ('sampling = "maybe"', "sampling must be 'secret' or 'published'"),
        ('sums = "magic"', "sums"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line, said):
    with pytest.raises(InputError, match=f"study.toml:1: .*{said}"):
        parse_remote_study(f"{line}\n{GOOD}")


def test_a_policy_is_the_sites_own():
    with pytest.raises(InputError, match="what a site lets out is the site's own policy"):
        parse_remote_study(GOOD + "[policy]\nmin_leaf = 3\n")


def test_not_toml():
    with pytest.raises(InputError, match="not valid TOML"):
        parse_remote_study("x = ")
