"""SQL-on-FHIR view definitions: how resources become rows, one row per code of an event.

Each view returns the resource's ``id``, the ``person`` it is about, a ``status``, when it was (``date0`` or the next
that is there) and ended (``ends``), and ``system`` and ``code``; those of observations a value and its unit, too.
"""

from typing import Any, NamedTuple


def _columns(**paths: str) -> dict[str, Any]:
    return {"column": [{"name": name, "path": path} for name, path in paths.items()]}


def _codes(*places: str) -> list[dict[str, Any]]:
    """Return a row per code in some places; one row without a code if there is none."""
    parts = [{"forEachOrNull": place, **_columns(system="system", code="code")} for place in places]
    return parts if len(parts) == 1 else [{"unionAll": parts}]


def _view(resource: str, dates: list[str], select: list[dict[str, Any]], **more: str) -> dict[str, Any]:
    about = {"id": "getResourceKey()", "person": "subject.reference", "status": "status", **more}
    numbered = {f"date{i}": path for i, path in enumerate(dates)}
    head = _columns(**about, **numbered)
    return {"resourceType": "ViewDefinition", "name": resource, "resource": resource, "select": [head, *select]}


class Events(NamedTuple):
    """A table of events, and the views that fill it."""

    table: str
    views: tuple[dict[str, Any], ...]


PATIENT = {
    "resourceType": "ViewDefinition",
    "name": "Patient",
    "resource": "Patient",
    "select": [_columns(id="getResourceKey()", sex="gender", born="birthDate", died="deceased.ofType(dateTime)")],
}

_EFFECTIVE = ["effective.ofType(dateTime)", "effective.ofType(instant)", "effective.ofType(Period).start"]
_VALUE = {
    "value0": "value.ofType(Quantity).value",
    "value1": "value.ofType(integer)",
    "unit0": "value.ofType(Quantity).code",
    "unit1": "value.ofType(Quantity).unit",
}
# in components the engine knows no types, only the names in the JSON
_IN_COMPONENT = {
    "value0": "valueQuantity.value",
    "value1": "valueInteger",
    "unit0": "valueQuantity.code",
    "unit1": "valueQuantity.unit",
}
_COMPONENTS = {"forEach": "component", "select": [_columns(**_IN_COMPONENT), *_codes("code.coding")]}

EVENTS = {
    "Condition": Events(
        "condition_occurrence",
        (
            _view(
                "Condition",
                ["onset.ofType(dateTime)", "onset.ofType(Period).start", "recordedDate"],
                _codes("code.coding"),
                status="verificationStatus.coding.code.first()",
                ends="abatement.ofType(dateTime)",
            ),
        ),
    ),
    "MedicationRequest": Events(
        "drug_exposure",
        (_view("MedicationRequest", ["authoredOn"], _codes("medication.ofType(CodeableConcept).coding")),),
    ),
    "Procedure": Events(
        "procedure_occurrence",
        (
            _view(
                "Procedure",
                ["performed.ofType(dateTime)", "performed.ofType(Period).start"],
                _codes("code.coding"),
            ),
        ),
    ),
    "Encounter": Events(
        "visit_occurrence",
        (_view("Encounter", ["period.start"], _codes("class", "type.coding"), ends="period.end"),),
    ),
    "Observation": Events(
        "measurement",
        (
            _view("Observation", _EFFECTIVE, [_columns(**_VALUE), *_codes("code.coding")]),
            _view("Observation", _EFFECTIVE, [_COMPONENTS]),
        ),
    ),
}
"""The events by resource type. A component of an observation, such as one of two blood pressures, is an event."""

NO_EVENT = frozenset({"entered-in-error", "refuted", "cancelled", "not-taken"})
"""Statuses of resources for events that did not happen."""
