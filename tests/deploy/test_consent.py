"""What an owner reads before approving: what is learned about whom, who sees it, and what it cannot reveal."""

import pytest

from silvan.deploy.studies.consent import consent
from silvan.privacy.policy import Policy
from silvan.study.parse import parse_remote_study

SITES = ["north", "south", "west"]


def answers(text, sites=SITES, **policy):
    """Returns the three answers about a study, each as one text."""
    study = parse_remote_study(f'name = "heart"\n{text}')
    return [" ".join(texts) for _, texts in consent(study, sites, Policy(**policy)).parts()]


ROWS = 'label = "sick"\ntest = 0.2\n'


def test_every_answer_names_what_it_is_about():
    learned, seen, limits = answers(f'{ROWS}exclude = ["postcode"]\n[learner]\nkind = "HistogramForest"')
    assert "predicts “sick” from all other columns of your table except postcode" in learned
    assert "3 sites: north, south, west" in learned
    assert "Nobody outside your site sees a row" in seen
    assert "could sometimes find out whether that person is in a table" in limits


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('sums = "trusted"\n[learner]\nkind = "HistogramForest"', 1, "sees your site's counts"),
        ('sums = "masked"\n[learner]\nkind = "HistogramForest"', 1, "counts over all sites together"),
        ('[learner]\nkind = "MergedForest"', 1, "Models trained on your rows alone are sent"),
        ('[learner]\nkind = "AdaBoostPL"', 1, "Models trained on your rows alone are sent"),
        ('metrics = "all"\n[learner]\nkind = "HistogramForest"', 1, "metrics of all sites, including yours"),
        ('auditor = "Ada"\n[learner]\nkind = "HistogramForest"', 1, "Ada checks the study afterwards"),
    ],
)
def test_who_sees_what_follows_from_the_study(text, place, said):
    assert said in answers(ROWS + text)[place]


def test_local_models_are_not_listed_where_only_counts_leave():
    assert "trained on your rows alone" not in answers(f'{ROWS}[learner]\nkind = "HistogramForest"')[1]


def test_noise_replaces_the_warning():
    schema = "[schema]\nage = { bounds = [0, 100] }\nsick = { classes = ['no', 'yes'] }\n"
    text = f'label = "sick"\n{schema}[learner]\nkind = "HistogramForest"\nepsilon = 1.0\nn_rows = 100'
    limits = answers(text)[2]
    assert "differential privacy, epsilon 1;" in limits
    assert "No noise is added" not in limits


def test_many_sites_are_not_all_named():
    learned = answers(f'{ROWS}[learner]\nkind = "HistogramForest"', [f"site {i}" for i in range(60)])[0]
    assert "60 sites: site 0" in learned
    assert "and 54 more sites" in learned


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        ('kind = "VerticalForest"\nlabels = "encoded"', "work out who has the same label"),
        ('kind = "VerticalForest"\nlabels = "encrypted"', "Labels travel encrypted"),
        ('kind = "VerticalLinear"', "All parties learn the label"),
    ],
)
def test_parties_read_what_others_learn_of_their_people(learner, said):
    text = f'label = "sick"\nsites = ["bank", "shop"]\n[learner]\n{learner}'
    _, seen, limits = answers(text, ["bank", "shop"])
    assert said in limits
    assert "no id does" in seen
