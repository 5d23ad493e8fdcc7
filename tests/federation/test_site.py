"""What leaves a site: replies to permitted requests, and never a value when something fails."""

import logging
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from helpers.asking import MARKS, NUMBER, SCHEMA, SECRET, frame, schema_blob, send, site, trouble

import silvan.learners  # noqa: F401  all kinds of messages are known now
from silvan.algorithms.evaluation.candidates import LocalModel
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.algorithms.horizontal.merged_forest import GrowTrees
from silvan.algorithms.shared_bins import CountGrid
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import FormatError, InputError, SchemaError
from silvan.federation import wire
from silvan.federation.describe import (
    BUCKETS,
    CategoryCounts,
    CategoryNames,
    CountCategories,
    CountRows,
    Describe,
    NameCategories,
)
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Envelope, Missing, Reply, Request, Trouble
from silvan.federation.site import answers
from silvan.federation.store import digest
from silvan.tree.fit import Settings

# -- answers


def test_a_reply_names_its_request():
    answer = send(site(), CountRows(), question="q1")
    assert (answer.study, answer.question, answer.sender, answer.kind) == ("study", "q1", "here", "Size")
    assert wire.decode(answer.body, CountRows.reply).rows == 40


def test_the_site_enforces_the_verb():
    named, data = schema_blob()
    for request, wrong in ((CountGrid(schema=named), "ask"), (CountRows(), "total")):
        assert send(site(), request, blobs=[data]).kind == request.reply.__name__
        assert trouble(send(site(), request, wrong, blobs=[data])).code == "refused"


def test_unknown_messages_are_refused():
    assert trouble(send(site(), CountRows(), kind="Nonsense")).code == "refused"
    assert trouble(send(site(), CountRows(), kind="Size")).code == "refused"  # a reply is not a request


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", wire.encode(Trouble("a", "b")), b"\xff" * 1000])
def test_invalid_bytes(data):
    answer = wire.decode(site().receive(data, "ask"), Envelope)
    assert trouble(answer).code == "format"
    assert answer.question == ""


def requests():
    """One request of each kind that can be sent to a single site."""
    named, data = schema_blob()
    settings = Settings(n_estimators=3, max_depth=3)
    key = np.arange(2, dtype=np.uint64)
    counts = wire.encode(CategoryCounts(counts=np.zeros((1, 2 * BUCKETS), np.int32)))
    return [
        (Describe(), []),
        (CountRows(), []),
        (CountCategories(names=["name", "absent", "label"]), []),
        (NameCategories(names=["name"], counts=Blob(digest(counts)), sites=["here"]), [counts]),
        (CountGrid(schema=named), [data]),
        (GrowTrees(schema=named, settings=settings, n_trees=3, feature_key=key), [data]),
        (EvaluateModels(schema=named, candidates=[LocalModel(settings)], feature_key=key), [data]),
    ]


@pytest.mark.parametrize("i", range(len(requests())), ids=lambda i: type(requests()[i][0]).__name__)
def test_the_same_request_twice(i):
    """Cached, repeated, and at a restarted site: the same bytes."""
    request, blobs = requests()[i]
    first = site(test=0.2)
    answers = [send(first, request, blobs=blobs) for _ in range(2)]
    answers.append(send(first.rebuilt(), request))  # its store has the blobs
    answers.append(send(site(test=0.2), request, blobs=blobs))
    assert answers[0].kind == request.reply.__name__
    assert answers == answers[:1] * 4


# -- blobs


def test_a_missing_blob_is_requested():
    named, data = schema_blob()
    here = site()
    answer = send(here, CountGrid(schema=named))
    assert wire.decode(answer.body, Missing).hashes == [named.hash]
    assert send(here, CountGrid(schema=named), blobs=[data]).kind == "GridCounts"
    assert send(here, CountGrid(schema=named)).kind == "GridCounts"  # kept


def test_a_blob_under_a_wrong_hash():
    named, data = schema_blob()
    here = site()
    wrong = {named.hash: data + b" "}
    assert trouble(send(here, CountGrid(schema=named), blobs=wrong)).code == "format"
    assert send(here, CountGrid(schema=named)).kind == "Missing"


def test_unreferenced_blobs_are_not_stored():
    here = site()
    send(here, CountRows(), blobs=[b"x" * 1000])
    assert here.store.get(f"blob {digest(b'x' * 1000)}") is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b"\xff", b'{"features":[],"label":{}}', b"9" * 10_000])
def test_an_invalid_schema(data):
    answer = send(site(), CountGrid(schema=Blob(digest(data))), blobs=[data])
    assert trouble(answer).code in ("format", "internal", "input", "schema")


# -- trouble


class Breaks(Request, frozen=True, kw_only=True):
    """Fails in some way."""

    verb = "ask"
    reply = CountRows.reply

    how: str


ERRORS = {
    "input": InputError(f"cannot take {SECRET} {NUMBER}"),
    "schema": SchemaError(SECRET),
    "format": FormatError(SECRET),
    "internal": KeyError(SECRET),
    "memory": MemoryError(SECRET),
    "deep": RecursionError(SECRET),
    "not a reply": None,
}


@pytest.fixture
def breaks():
    @answers(Breaks)
    def fail(site, request):
        if request.how == "not a reply":
            return CategoryNames(names=[object()])
        raise ERRORS[request.how]

    yield
    del HANDLERS["Breaks"]


@pytest.mark.parametrize("how", ERRORS)
@pytest.mark.usefixtures("breaks")
def test_errors_are_a_code_and_a_fixed_text(how, caplog):
    here = site()
    with caplog.at_level(logging.ERROR, "silvan.site"):
        answer = send(here, Breaks(how=how), question="q1")
    replies = trouble(answer)
    assert replies.code == (how if how in ("input", "schema", "format") else "internal")
    assert answer.question == "q1"
    assert not any(mark in wire.encode(answer) for mark in MARKS)
    assert here.last_error is not None  # for the site's owner, who may see it
    assert "could not answer" in caplog.text
    send(here, CountRows())
    assert here.last_error is None


SPOILT = {
    "label of text, a number wanted": (frame(), Schema.of(["age"], Label("name"))),
    "unknown class": (frame(), Schema.of(["age"], Label("name", ("x", "y")))),
    "text, a number wanted": (frame(), Schema.of(["name"], Label("label", ("no", "yes")))),
    "categories not agreed": (frame(), Schema.of([Feature("name", "categorical")], Label("label", ("no", "yes")))),
    "no label": (frame(), Schema.of(["age"], Label("death", ("no", "yes")))),
    "infinite": (frame().with_columns(age=pl.col("age") * 1e300), Schema.of(["age"], Label("label", ("no", "yes")))),
    "missing label": (frame().with_columns(label=pl.when(pl.col("age") < 60).then("label")), SCHEMA),
    "missing number": (
        frame().with_columns(label=pl.when(pl.col("age") != NUMBER).then("age")),
        Schema.of(["age"], Label("label")),
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_table_that_does_not_fit(case):
    table, schema = SPOILT[case]
    here = site(table)
    named, data = schema_blob(schema)
    answer = send(here, CountGrid(schema=named), blobs=[data])
    assert trouble(answer).code in ("schema", "input")
    assert not any(mark in wire.encode(answer) for mark in MARKS)


@pytest.mark.parametrize("source", ["nowhere.csv", 17, pl.DataFrame(), pl.DataFrame({"label": [SECRET]})])
def test_a_table_that_cannot_be_read(source):
    answer = send(site(source), Describe())
    assert trouble(answer).code in ("schema", "input")
    assert not any(mark in wire.encode(answer) for mark in MARKS)


@pytest.mark.parametrize("i", range(len(requests())), ids=lambda i: type(requests()[i][0]).__name__)
def test_no_reply_contains_the_values_of_a_row(i):
    request, blobs = requests()[i]
    answer = wire.encode(send(site(test=0.2), request, blobs=blobs))
    assert not any(mark in answer for mark in MARKS)


def test_two_messages_with_one_name():
    """Otherwise the second would silently be used in place of the first."""

    class Describe(Request, frozen=True, kw_only=True):  # as one of the agreement's
        """The number of rows."""

        verb: ClassVar = "ask"
        reply: ClassVar = Reply

    with pytest.raises(TypeError, match=r"Describe is the name of a message of silvan\.federation"):
        answers(Describe)(lambda site, request: Reply())
