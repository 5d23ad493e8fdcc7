"""The kinds of messages: all that this program knows, and what each asks and answers."""

import inspect
from collections.abc import Iterable, Iterator

import silvan.algorithms  # noqa: F401  so that all kinds are known
from silvan.federation.message import Request
from silvan.study.run_folder import Kind


def all_requests(kind: type[Request] = Request) -> Iterator[type[Request]]:
    """Yield all kinds of requests."""
    for one in kind.__subclasses__():
        yield one
        yield from all_requests(one)


def describe_kinds(names: Iterable[str]) -> list[Kind]:
    """Return what each kind of request, by name, asks and answers; unknown names are left out."""
    requests = {request.kind(): request for request in all_requests()}
    return [
        Kind(name, _first_paragraph(requests[name]), _first_paragraph(requests[name].reply), requests[name].verb)
        for name in names
        if name in requests
    ]


def _first_paragraph(message: type) -> str:
    """Return the first paragraph of a message's docstring, in one line."""
    return " ".join(inspect.cleandoc(message.__doc__ or "").split("\n\n")[0].replace("``", "").split())
