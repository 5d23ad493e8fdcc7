"""What the kinds of messages of a study ask and answer, as the run folder shows it."""

import inspect
from collections.abc import Iterable

from silvan.federation.handlers import HANDLERS
from silvan.study.run_folder import Kind


def describe_kinds(names: Iterable[str]) -> list[Kind]:
    """Return what each kind of request, by name, asks and answers; unknown names are left out."""
    requests = {name: HANDLERS[name][0] for name in names if name in HANDLERS}
    return [
        Kind(name, _first_paragraph(request), _first_paragraph(request.reply), request.verb)
        for name, request in requests.items()
    ]


def _first_paragraph(message: type) -> str:
    """Return the first paragraph of a message's docstring, in one line."""
    return " ".join(inspect.cleandoc(message.__doc__ or "").split("\n\n")[0].replace("``", "").split())
