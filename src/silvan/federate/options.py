"""Shared by federations of rows and columns: options, checks of arguments, and the sums and gates that they select."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import Parameter
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from silvan.data.column_types import Kinds
from silvan.data.schema import Task
from silvan.errors import InputError
from silvan.federation.federation import Federation, Sums
from silvan.federation.journal import Journal
from silvan.federation.keys import Key
from silvan.federation.members import check_names
from silvan.federation.signed import make_signers
from silvan.federation.site import SecureSum, Site
from silvan.federation.store import Store
from silvan.federation.sums import TrustedSums
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.masked_site import MaskedPart
from silvan.privacy.aggregation.ring import RingPart, RingSums
from silvan.privacy.close_study import make_verifiable
from silvan.privacy.gate import Gate
from silvan.privacy.identity.seal import public_key
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import make_folders
from silvan.privacy.terms import Terms
from silvan.util.device import check_device

NEEDS_TRUSTED_SUMS = (
    "must be 'trusted' to leave one site out: the sums with a site and those without it differ by the site's own, "
    "which other sums hide"
)

SumsName = Literal["trusted", "ring", "masked"]
EXCLUDES_LABEL = "names the label {!r}, which is the column to predict; leave it out of exclude, or set another label"
Federate = TypeVar("Federate", bound=Callable[..., Federation])


class OptionKeywords(TypedDict, total=False):
    """The fields of ``Options``, as keywords."""

    sums: SumsName
    policy: Policy | None
    ledgers: str | Path | None
    signed: bool
    cold: bool
    quorum: int | None
    timeout: float | None
    journal: str | None
    n_jobs: int | None
    device: str
    transport: type[InProcess]


@dataclass(frozen=True)
class Options:
    """How a federation in this process protects what leaves its sites, and how it runs.

    ``federate_rows`` documents each option.
    """

    sums: SumsName = "trusted"
    policy: Policy | None = None
    ledgers: str | Path | None = None
    signed: bool = False
    cold: bool = False
    quorum: int | None = None
    timeout: float | None = None
    journal: str | None = None
    n_jobs: int | None = None
    device: str = "auto"
    transport: type[InProcess] = InProcess

    def __post_init__(self) -> None:
        """Raise ``InputError`` for a device that there cannot be."""
        check_device(self.device)

    @property
    def processing(self) -> dict[str, Any]:
        """The settings of a site that say what it computes on."""
        return {"n_jobs": self.n_jobs, "device": self.device}


def shows_options(function: Federate) -> Federate:
    """Write the options into a function's signature in place of ``**options``, for help and for notebooks."""
    signature, hints = inspect.signature(function), get_type_hints(OptionKeywords)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    options = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[option.name])
        for option in fields(Options)
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*named, *options])
    return function


class Protection:
    """Protections of the sites in one process, and the coordinator's half of them."""

    def __init__(self, names: Sequence[str], options: Options) -> None:
        check_names(list(names))
        self.policy = Policy() if options.policy is None else options.policy
        self.names = tuple(names)
        self.journal = Journal(options.journal)
        self.folders = make_folders(options.ledgers, names)
        self.stores: dict[str, Store] = {name: self.journal.store(name) for name in names}
        seals = self.seals if options.signed else None
        folders = self.folders
        keys = {n: folders[n].key if n in folders else Key.kept_in(store) for n, store in self.stores.items()}
        self.signer, self.signers = make_signers(list(names), keys, seals)
        self.signed = options.signed
        self.sums, self.secure_sum = make_sums(options.sums, seals)

    @property
    def seals(self) -> dict[str, bytes]:
        """The public keys that sites seal with for each other; as all are created here, each may know them."""
        return {name: public_key(store) for name, store in self.stores.items()}

    def of(self, name: str, budget: Budget | None = None) -> dict[str, Any]:
        """Return the arguments for creating one site."""
        folder = self.folders.get(name)
        kept: dict[str, Any] = {} if folder is None else {"ledger": folder.ledger, "approvals": folder.approvals}
        return {
            "store": self.stores[name],
            "outbox": Gate(self.policy, budget, terms=Terms(sites=self.names), **kept),
            "secure_sum": self.secure_sum,
            "signer": self.signers[name] if self.signed else None,
            "keys": self.signers[name],
        }

    def federation(self, sites: dict[str, Site], study: str, options: Options) -> Federation:
        """Make the federation of sites created with these protections."""
        check_quorum(options.quorum, self.sums, len(sites))
        federation = Federation(
            options.transport(sites, cold=options.cold),
            sites,
            self.sums,
            study=study,
            journal=self.journal,
            quorum=options.quorum,
            timeout=options.timeout,
            signer=self.signer if self.signed else None,
            roster=self.signer.roster,
        )
        return make_verifiable(federation)


def make_sums(name: str, seals: Mapping[str, bytes] | None = None) -> tuple[Sums, SecureSum | None]:
    """Return both halves of the chosen sum protocol: the coordinator's, and the one that hides a site's part.

    ``seals`` are the keys by which sites know each other, if they do not take the coordinator's word for them.
    """
    if name == "trusted":
        return TrustedSums(), None
    if name == "ring":
        return RingSums(), RingPart(seals)
    if name == "masked":
        return MaskedSums(), MaskedPart(seals)
    raise InputError.wrong("sums", "'trusted', 'ring' or 'masked'", name)


def check_quorum(quorum: int | None, sums: Sums, n: int) -> None:
    """Raise ``InputError`` for a quorum of n sites that is too small for any sum."""
    needed = sums.must_stay(n)
    if quorum is not None and 1 <= quorum < needed <= n:
        raise InputError.wrong(
            "quorum", f"at least {needed}: {sums.name} sums over {n} sites are finished by so many", quorum
        )


def check_common(
    test: float, task: str | None, random_state: Any, exclude: Any, label: str | None, *, may_be_none: bool = False
) -> None:
    """Raise ``InputError`` for an impossible test share, task, seed or list of columns."""
    if not 0.0 <= test < 1.0:
        raise InputError.wrong("test", "at least 0 and below 1", test)
    if task not in (None, *get_args(Task)):
        raise InputError.wrong("task", "None, 'classification', 'regression' or 'survival'", task)
    whole = isinstance(random_state, Integral) and not isinstance(random_state, bool)
    if not ((whole and random_state >= 0) or (may_be_none and random_state is None)):
        wanted = "None or a whole number" if may_be_none else "a whole number"
        raise InputError.wrong("random_state", f"{wanted} of at least 0", random_state)
    if isinstance(exclude, str):
        raise InputError.wrong("exclude", "a list of columns", exclude)
    if label in exclude:
        raise InputError.about("exclude", EXCLUDES_LABEL.format(label))


NEEDS_TIMES = "'survival' needs time and event: the columns of times, and of whether the event happened then"


def task_of(task: Task | None, time: str | None, event: str | None, label: str, exclude: Sequence[str]) -> Task | None:
    """Return the task; raise ``InputError`` unless it is survival where, and only where, time and event are named."""
    named = [name for name, column in (("time", time), ("event", event)) if column is not None]
    if not named and task != "survival":
        return task
    if len(named) < 2:
        raise InputError.about("task", NEEDS_TIMES)
    if task not in (None, "survival"):
        raise InputError.about(named[0], f"is for task='survival', got task={task!r}")
    if label not in ("label", time):
        raise InputError.about("label", "is for other tasks than survival, whose label is time and event: leave it out")
    if event in exclude:
        raise InputError.about("exclude", f"names the event {event!r}, which is a part of what is predicted")
    return "survival"


def check_excluded(exclude: Sequence[str], sites: Mapping[str, Site], where: str) -> None:
    """Raise ``InputError`` for a misspelt column, which would otherwise become a feature."""
    unknown = [name for name in exclude if not any(name in site.excluded for site in sites.values())]
    if unknown:
        raise InputError.about("exclude", f"names {unknown[0]!r}, which is not a column {where}")


def check_folded(kinds: Kinds, label: str) -> None:
    """Raise ``InputError`` for case-insensitive categories of a feature: only classes may be."""
    folded = [name for name, kind in kinds.items() if kind == "folded" and name != label]
    if folded:
        raise InputError(f"kinds: 'folded' is for the label; write the categories of {folded[0]!r} alike instead")


def check_named(kinds: Kinds, names: Sequence[str], where: str) -> None:
    """Raise ``InputError`` for a misspelt column in ``kinds``."""
    unknown = [name for name in kinds if name not in names]
    if unknown:
        close = get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError.about("kinds", f"names {unknown[0]!r}, which is not a column {where}{hint}")
