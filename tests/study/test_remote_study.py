"""Study files for machines."""

import pytest

from silvan.errors import InputError
from silvan.study.parse import parse_remote_study, predicting
from silvan.study.study_file import read_remote_study

GOOD = 'name = "heart"\nlabel = "x"\n[learner]\nkind = "HistogramForest"\n'


def test_a_study():
    study = parse_remote_study(GOOD)
    assert (study.kind, study.timeout, study.quorum, study.site_names) == ("HistogramForest", 3600.0, None, None)
    assert study.unique_name.startswith("heart ")


def test_every_letter_counts():
    assert parse_remote_study(GOOD).unique_name != parse_remote_study(GOOD + "\n").unique_name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('table = "x.csv"', "each site names its own table"),
        ('sites = "north"', "sites must be a list of names"),
        ('sites = ["a", "a"]', "sites must be a list of names"),
        ("quorum = 0", "quorum must be a whole number"),
        ("timeout = -1", "timeout must be a number of seconds above 0"),
        ('id = "x"', "each party names its own column of ids in its site.toml"),
        ('match = "keyed"', "match is for parties that hold columns"),
        ('names = "shown"', "names is for parties that hold columns"),
        ("unheard = 1", "unheard"),
        ('sampling = "maybe"', "sampling must be 'published' or 'secret'"),
        ('sums = "magic"', "sums"),
    ],
)
def test_mistakes_are_reported_with_their_line(line, said):
    with pytest.raises(InputError, match=f"study.toml:1: .*{said}"):
        parse_remote_study(f"{line}\n{GOOD}")


def test_a_study_cannot_set_a_policy():
    with pytest.raises(InputError, match="what a site lets out is the site's own policy"):
        parse_remote_study(GOOD + "[policy]\nmin_leaf = 3\n")


COLUMNS = 'name = "heart"\nsites = ["bank", "shop"]\n[learner]\nkind = "VerticalForest"\n'


def test_a_study_over_columns():
    study = parse_remote_study(COLUMNS)
    assert study.by_columns
    assert not study.secret  # the label holder samples rows
    assert (study.match, study.names, study.predict) == ("psi", "coded", None)
    assert parse_remote_study('match = "keyed"\nnames = "shown"\n' + COLUMNS).names == "shown"
    assert not parse_remote_study(GOOD).by_columns
    assert parse_remote_study('label_holder = "bank"\n' + COLUMNS).label_holder == "bank"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quorum = 2", "of columns, every party is needed"),
        ('sampling = "published"', "the label holder draws rows"),
        ('match = "names"', "match must be 'keyed' or 'psi'"),
        ('id = "x"', "each party names its own column of ids"),
        ('label_holder = "pub"', "label_holder must be one of sites, got 'pub'"),
    ],
)
def test_settings_invalid_over_columns(line, said):
    with pytest.raises(InputError, match=f"study.toml:1: .*{said}"):
        parse_remote_study(f"{line}\n{COLUMNS}")


def test_parties_are_sites_and_weights_of_classes_need_names():
    with pytest.raises(InputError, match="parties are named by sites"):
        parse_remote_study(COLUMNS + '[parties]\nbank = "bank.csv"\n')
    with pytest.raises(InputError, match='set names = "shown" for a weight per class'):
        parse_remote_study(COLUMNS + "class_weight = { no = 1.0, yes = 2.0 }\n")
    with pytest.raises(InputError, match="written by `silvan study predict`"):
        parse_remote_study(COLUMNS + '[predict]\nstudy = "../x"\nmodel = "y"\nnumber = 1\n')
    with pytest.raises(InputError, match="predict is for parties"):
        parse_remote_study(GOOD + '[predict]\nstudy = "x"\n')


def test_a_prediction_is_a_separate_study():
    study = parse_remote_study(COLUMNS)
    first, second = (predicting(study, "0" * 64, number) for number in (1, 2))
    assert len({study.unique_name, first.unique_name, second.unique_name}) == 3
    assert first.model_folder == second.model_folder == study.folder
    assert (first.predict.study, first.predict.number, second.predict.number) == (study.digest, 1, 2)


def test_the_name_does_not_depend_on_the_file(tmp_path):
    """Sites have the text of a study and not its file: all must use the same name for it."""
    path = tmp_path / "heart.toml"
    path.write_text('[learner]\nkind = "HistogramForest"\n')
    assert read_remote_study(path).unique_name == parse_remote_study(path.read_text()).unique_name


def test_not_toml():
    with pytest.raises(InputError, match="not valid TOML"):
        parse_remote_study("x = ")
