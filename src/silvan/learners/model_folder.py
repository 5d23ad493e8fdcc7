"""Save and load models in folders: the coordinator's part, and every party's share in a file of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from silvan.errors import FormatError, InputError
from silvan.util.files import UNREADABLE, file_name, write_whole

_PARAMETERS, _SHARE = "parameters.json", ".share.silvan"

T = TypeVar("T")


class Written(Protocol):
    """Something that can be written to a file."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""


def write_model(
    folder: str | Path, name: str, model: Written, shares: Mapping[str, Written], parameters: dict[str, Any]
) -> None:
    """Write all shares that are known here, the parameters and, last, the model: an unfinished folder has none."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for party, share in shares.items():
        write_whole(share_file(folder, party), share.to_bytes())
    write_whole(folder / _PARAMETERS, msgspec.json.encode(parameters))
    write_whole(folder / name, model.to_bytes())


def share_file(folder: str | Path, party: str) -> Path:
    """Return the path of a party's share."""
    return Path(folder) / (file_name(party) + _SHARE)


def read_part(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a file; errors begin with its path."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; is {str(path.parent)!r} a saved model?")
    try:
        return read(path.read_bytes())
    except (FormatError, *UNREADABLE) as error:
        kind = type(error) if isinstance(error, FormatError) else FormatError
        raise kind(f"{path}: {error}") from None


def read_parameters(folder: str | Path, make: type[T]) -> T:
    """Make a learner with the parameters that were written."""
    path = Path(folder) / _PARAMETERS
    parameters = read_part(path, lambda data: msgspec.json.decode(data, type=dict[str, Any]))
    try:
        return make(**parameters)
    except TypeError:
        raise FormatError(f"{path}: not the parameters of {make.__name__}") from None
