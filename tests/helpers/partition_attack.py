"""The attack of ``silvan.auditing.vertical_labels`` on messages recorded by a test."""

from silvan.algorithms.vertical.party_rows import Round
from silvan.algorithms.vertical.party_shares import KeepShare
from silvan.auditing.vertical_labels import certain, drawn_by, groups, likely
from silvan.federation import wire

__all__ = ["accuracy", "certain", "drawn_by", "groups", "last_rounds", "likely"]


def last_rounds(fed, party):
    """The partitions that a party received while trees grew, and the trees."""
    kept = [e for site, way, e in fed.transport.record if (site, way, e.kind) == (party, "received", "KeepShare")]
    ground = wire.decode(kept[-1].body, KeepShare).ground
    return [wire.decode(fed.content(blob), Round) for blob in ground.rounds], ground


def accuracy(guess, truth):
    """The number of rows on the right side, whatever the sides are called."""
    right = float((guess == truth).mean())
    return max(right, 1 - right)
