"""A table in many Parquet files, which the workers of a Dask cluster read."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import narwhals as nw

from silvan.errors import InputError


@dataclass(frozen=True)
class Partitions:
    """A table of any size in many Parquet files, read by the workers of a site's Dask cluster.

    Rows come in the order of the files' names, or of the list. Workers open the files themselves, so the paths must be
    valid on all of them.

    Parameters
    ----------
    files
        A folder, a pattern such as ``"rows/*.parquet"``, or a list of paths.
    cluster
        The address of the cluster's scheduler, such as ``"tcp://head.bank.example:8786"`` or ``"tls://..."``; None: the
        cluster of the latest ``distributed.Client`` in this process.

    Examples
    --------
    >>> import silvan as sv
    >>> sv.Partitions("rows/*.parquet", cluster="tcp://head.bank.example:8786")
    Partitions(files='rows/*.parquet', cluster='tcp://head.bank.example:8786')
    """

    files: str | Path | Sequence[str | Path]
    cluster: str | None = None

    def __post_init__(self) -> None:
        """Raise ``InputError`` for invalid options."""
        files: Any = self.files
        several = isinstance(files, list | tuple) and all(isinstance(file, str | Path) for file in files)
        if not (isinstance(files, str | Path) or several) or not files:
            raise InputError.wrong("files", "a folder, a pattern such as 'rows/*.parquet' or a list", files)
        if several:
            object.__setattr__(self, "files", tuple(str(file) for file in files))
        cluster: Any = self.cluster
        if cluster is not None and (not isinstance(cluster, str) or "://" not in cluster):
            raise InputError.wrong("cluster", "the address of a Dask scheduler, such as 'tcp://host:8786'", cluster)

    def beside(self, folder: Path) -> "Partitions":
        """Return the table with relative paths resolved against a folder."""
        if isinstance(self.files, str | Path):
            return replace(self, files=str(folder / self.files))
        return replace(self, files=tuple(str(folder / file) for file in self.files))

    def paths(self) -> list[Path]:
        """Return the files in the order of their rows; raise ``InputError`` if there are none."""
        if not isinstance(self.files, str | Path):
            paths = [Path(file) for file in self.files]
        elif Path(self.files).is_dir():
            paths = sorted(Path(self.files).glob("*.parquet"))
        else:
            paths = sorted(map(Path, glob.glob(str(self.files), recursive=True)))
        if not paths:
            raise InputError(f"no file matches {str(self.files)!r}; check the path, which is on the cluster's machines")
        for path in paths:
            if path.suffix.lower() != ".parquet":
                raise InputError(f"{str(path)!r}: partitions must be Parquet files; convert it, or leave it out")
            if not path.is_file():
                raise InputError(f"there is no file {str(path)!r}; check the path")
        return [path.absolute() for path in paths]


def is_partitioned(source: Any) -> bool:
    """Whether a table is partitioned over a Dask cluster."""
    return isinstance(source, Partitions) or nw.dependencies.is_dask_dataframe(source)
