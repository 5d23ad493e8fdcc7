"""A coordinator inserts its own key among those of the parties, to obtain their shared key.

It asks a party to seal the shared key for an invented name, or opens what is sealed for another party; and it gives a
party a key of its choice for hashing ids.
"""

from contextlib import suppress

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from experiments.attacks.names_in_clear import ID, tables
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation.party import Party
from silvan.privacy.identity.seal import pair_key, public_key, seal, unseal
from silvan.privacy.identity.shared_key import DealKey, TakeKey, deal_key, take_key

STUDY = "s"
_PURPOSE = b"shared key of s"


def run(small: bool) -> list[Outcome]:
    """Request the key, and plant one."""
    given = tables(40)
    own = X25519PrivateKey.generate()
    fed = sv.federate_columns(given, id=ID, label="label", random_state=None)
    opened, notes = 0, set()
    for name in ("coordinator", "shop"):
        bank = fed.party("bank")
        try:
            box = deal_key(bank, DealKey(study=STUDY, sites=[name])).boxes[name]
            opened += bank.key in unseal(pair_key(own, public_key(bank.store), _PURPOSE), box)
        except RefusedError as error:
            notes.add(str(error))
    planted = 0
    for party in (Party("new", given["shop"], id_column=ID), fed.party("shop").rebuilt()):
        party.store.put("shared key", b"") if party.name != "new" else None
        box = seal(pair_key(own, public_key(party.store), _PURPOSE), bytes(range(32)))
        with suppress(RefusedError):
            take_key(party, TakeKey(study=STUDY, by="bank", box=box))
            planted += party.key == bytes(range(32))
    return [
        Outcome("the parties' key, sealed for the coordinator, of 2 ways", "2 of 2", opened, note="; ".join(notes)),
        Outcome("a key of the coordinator's choice, planted at a party", "1 of 1", planted),
    ]
