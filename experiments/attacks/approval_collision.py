"""Two studies with the same short name: the owner approves one, and the other is run.

The two texts below were found by trying 40 million endings of each, in a minute on one core: the first 48 bits of their
digests are equal. An approval bound to these bits would cover both studies. Then, with an approved study, the
coordinator sends kinds of messages that were not shown, and kinds of another approved study to a site that serves this
one.
"""

import tempfile
from pathlib import Path

import msgspec
from experiments.attacks.outcome import Outcome

from silvan.deploy.membership.coordinator_folder import Membership
from silvan.deploy.membership.joined_site import MEMBER, SETTINGS, JoinedSite
from silvan.deploy.studies.explain import approve_study, explain
from silvan.errors import RefusedError
from silvan.federation.handlers import HANDLERS
from silvan.federation.keys import Key, Roster
from silvan.study.parse import parse_remote_study
from silvan.study.study import Study
from silvan.util.files import write_whole

HARMLESS = """name = "heart"
label = "disease"
exclude = ["postcode"]
sums = "masked"

[learner]
kind = "HistogramForest"
# 1049ee0
"""
HARMFUL = """name = "heart"
label = "disease"
sums = "trusted"

[learner]
kind = "MergedForest"
# 2012822
"""


SITES = ("north", "south", "west")


def run(small: bool) -> list[Outcome]:
    """Approve one study and run another; send requests that were not shown."""
    shown, other = parse_remote_study(HARMLESS), parse_remote_study(HARMFUL)
    with tempfile.TemporaryDirectory() as folder:
        member = make_member(Path(folder))
        for study in (shown, other):
            member.note_study(study)
        listed = {kind.name for kind in explain(member, shown).leaves}
        approve_study(member, shown)
        kinds = sorted(HANDLERS)
        hidden = [kind for kind in kinds if kind not in listed and HANDLERS[kind][0].of_rows]
        return [
            Outcome("1 of 2 studies that arrived, hidden from the owner", "1", 2 - len(member.studies())),
            _control(member, sorted(listed), shown),
            _outcome("of a study that was never approved", "56", member, kinds, other, other),
            _outcome("that were not shown", "48", member, hidden, shown, shown),
            _outcome("under another study's name", "56", member, kinds, other, shown),
        ]


def _outcome(what: str, before: str, member: JoinedSite, kinds: list[str], made_for: Study, asked_as: Study) -> Outcome:
    """Count the kinds of messages that the gate of a study accepts."""
    gate, read, note = member.gate(made_for), 0, ""
    for kind in kinds:
        try:
            gate.check_kind(HANDLERS[kind][0], asked_as.unique_name, list(SITES))
            read += 1
        except RefusedError as error:
            note = str(error)
    gate.budget.close()
    return Outcome(f"{len(kinds)} kinds of messages {what}", before, read, note=note.split(";")[0])


def _control(member: JoinedSite, listed: list[str], shown: Study) -> Outcome:
    """Count the approved study's own kinds that the gate refuses: refusing all would prove nothing."""
    target, before = "messages of the approved study itself that are refused", "none"
    answered = _outcome("", "", member, listed, shown, shown)
    return Outcome(target, before, len(listed) - answered.read, note=answered.note)


def make_member(folder: Path) -> JoinedSite:
    """Write the folder of a site that has joined."""
    own, others = Key.at(folder / "site.key"), [Key.generate() for _ in range(3)]
    keys = {name: key.public for name, key in zip(SITES, [own, *others], strict=False)}
    Roster(others[-1].public, keys).save(folder / "roster.json")
    write_whole(folder / SETTINGS, b'table = "rows.csv"\n\n[policy]\napprove = true\n')
    membership = Membership("heart", "north", "localhost", 8102, "", others[-1].public.hex())
    write_whole(folder / MEMBER, msgspec.json.encode(membership))
    return JoinedSite(folder)
