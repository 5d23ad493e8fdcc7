"""silvan's files in the folders of a FLARE federation that others have set up.

::

    local/silvan.toml      at a site: the table and the policy; its owner writes it
    silvan/                at a site: key, ledger, approvals, store, budget, log, as in any site's folder
    silvan/rosters/        at a site: everybody's keys, a file a study
    silvan/runs/           at the server: a folder a study, with its journal until it is done
    silvan/coordinator.key at the server: signs every message
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from silvan.deploy.membership.certificates import common_name, read_certificate
from silvan.deploy.membership.introductions import Carrier, Credentials, SignedKeys, collect, hand_out, read_roster
from silvan.deploy.membership.joined_site import MEMBER, JoinedSite
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.membership.site_log import keep_log
from silvan.errors import FederationError, InputError
from silvan.federation.keys import COORDINATOR, Key, Roster
from silvan.federation.signed import Signer
from silvan.privacy.identity.seal import public_key
from silvan.study.run_folder import JOURNAL, LEARNT, Run
from silvan.study.study import Study
from silvan.study.toml_lines import read_toml
from silvan.util.files import read_json, write_whole

SETTINGS, FOLDER = "silvan.toml", "silvan"
_PLACE, _ROSTERS, _INTRODUCTIONS = "flare.json", "rosters", "introductions.json"


class _Place(msgspec.Struct, frozen=True):
    """The contents of ``flare.json``: the party that these files belong to."""

    site: str
    workspace: str


class FlareSite(SiteFiles):
    """A site in its FLARE folder."""

    known_settings: ClassVar = {**SiteFiles.known_settings, "folder": str, "simulator": bool}

    def __init__(self, workspace: Path, name: str) -> None:
        self.workspace = workspace.resolve()
        self.startup = self.workspace / "startup"
        settings = self.workspace / "local" / SETTINGS
        own = _read_own(settings)
        super().__init__(_own_folder(self.workspace, own, name), settings, name)
        self.simulator = own.get("simulator", False)
        if not isinstance(self.simulator, bool):
            raise InputError(f"{settings}: simulator must be true or false, got {self.simulator!r}")

    @classmethod
    def of_job(cls, workspace: Path, name: str) -> "FlareSite":
        """Return the site that a job runs at, and record the place of its folder for its owner's commands."""
        site = cls(workspace, name)
        site.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_log(site.path)
        write_whole(site.path / _PLACE, msgspec.json.encode(_Place(name, str(site.workspace))))
        return site

    @property
    def credentials(self) -> Credentials | None:
        """The site's FLARE certificate; None in the simulator, which has none."""
        if self.simulator:
            return None
        found = Credentials.read(self.startup, "client")
        if found.name != self.name:
            raise FederationError(f"FLARE calls the site {self.name!r}, its certificate {found.name!r}")
        return found

    def introduction(self, study: Study) -> SignedKeys:
        """Return the site's own introduction to a study."""
        own = SignedKeys(self.name, self.folder.key.public, public_key(self.store))
        credentials = self.credentials
        return own if credentials is None else credentials.sign(own, study)

    def pin_roster(self, study: Study, everybody: Sequence[SignedKeys]) -> Roster:
        """Check everybody's introductions and store their keys; raise ``FederationError`` if other keys are stored."""
        roster = read_roster(study, everybody, self.credentials)
        path = self.path / _ROSTERS / f"{study.digest}.json"
        if path.exists():
            if Roster.load(path) != roster:
                raise FederationError(
                    "others take part, or with other keys, than when this study began; if its owner knows why, the "
                    f"file {_ROSTERS}/{path.name} may be removed, and the study begun anew"
                )
            return roster
        path.parent.mkdir(exist_ok=True)
        roster.save(path)
        return roster

    def coordinator_key(self, study: Study) -> bytes:
        """Return the public key of the coordinator, as it was when the study began."""
        path = self.path / _ROSTERS / f"{study.digest}.json"
        if not path.exists():
            raise InputError("the study has not begun here, so its coordinator is not known")
        return Roster.load(path).coordinator


def open_site(folder: Path) -> SiteFiles:
    """Return the site of a folder: one that has joined, FLARE's own folder of a site, or ``silvan`` in that."""
    folder = folder.resolve()
    if (folder / MEMBER).exists():
        return JoinedSite(folder)
    if (folder / _PLACE).is_file():
        place = read_json(folder / _PLACE, _Place, "damaged; the next job writes it anew")
        return FlareSite(Path(place.workspace), place.site)
    if (folder / "local" / SETTINGS).is_file():
        certificate = folder / "startup" / "client.crt"
        if not certificate.is_file():
            raise InputError(f"{folder}: FLARE's folder has no certificate; name the folder {FOLDER!r} of the site")
        return FlareSite(folder, common_name(read_certificate(certificate.read_bytes())))
    return JoinedSite(folder)


def is_site(folder: Path) -> bool:
    """Whether there is a site of a federation of machines in a folder."""
    return any((folder / name).exists() for name in (MEMBER, _PLACE, f"local/{SETTINGS}"))


def is_flare_server(folder: Path) -> bool:
    """Whether a folder belongs to a server that FLARE provisioned."""
    return (folder / "startup" / "server.crt").is_file() and (folder / "local").is_dir()


# -- at the server


@dataclass(frozen=True)
class Parties:
    """The participants of a job: all sites, the missing ones and why, and the coordinator's signer."""

    sites: list[str]
    without: dict[str, str]
    signer: Signer


class FlareServer:
    """The coordinator's files in the folder of a FLARE server."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace.resolve()
        settings = self.workspace / "local" / SETTINGS
        own = _read_own(settings) if settings.exists() else {}
        self.path = _own_folder(self.workspace, own, "server")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._simulator = own.get("simulator") is True

    def run(self, study: Study) -> Run:
        """Return the run folder of a study."""
        return Run(self.path / "runs" / study.folder)

    def meet(self, job: Carrier, study: Study, run: Run) -> Parties:
        """Introduce all parties to each other; a resumed study keeps its original ones.

        A missing site is left out if the study's quorum allows it.
        """
        key = Key.at(self.path / "coordinator.key")
        credentials = None if self._simulator else Credentials.read(self.workspace / "startup", "server")
        own = SignedKeys(COORDINATOR, key.public)
        own = own if credentials is None else credentials.sign(own, study)
        known = _read_introductions(run)
        listed = [site for site in study.site_names or () if not known or site in known]
        came = collect(job, listed, study.timeout)
        away = {site: str(error) for site, error in came.items() if isinstance(error, Exception)}
        here = {site: one for site, one in came.items() if isinstance(one, SignedKeys)}
        if len(here) < (study.quorum or len(listed)):
            raise FederationError("; ".join(away.values()))
        for site, one in here.items():
            if site in known and (one.key, one.seal) != (known[site].key, known[site].seal):
                raise FederationError(f"site {site!r} has other keys than when the study began; begin it anew")
        introduced = {**known, **here}
        sites = [site for site in listed if site in introduced]
        everybody = [own, *(introduced[site] for site in sites)]
        roster = read_roster(study, everybody, credentials)
        write_whole(run.file(_INTRODUCTIONS), msgspec.json.encode([introduced[site] for site in sites]))
        hand_out(job, list(here), everybody, study.timeout)
        return Parties(sites, {s: why for s, why in away.items() if s in sites}, Signer(COORDINATOR, key, roster))


def _read_introductions(run: Run) -> dict[str, SignedKeys]:
    """Return the introductions that a study began with; none if it has not begun."""
    path = run.file(_INTRODUCTIONS)
    remedy = f"damaged; remove {run.folder} to begin the study anew"
    known = read_json(path, list[SignedKeys], remedy) if path.exists() else []
    return {one.name: one for one in known}


def copy_results(run: Run, folder: Path) -> None:
    """Copy the results of a study: its run folder without the journal and the introductions."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in run.folder.iterdir() if run.folder.is_dir() else ():
        if path.is_file() and not path.name.startswith((JOURNAL, LEARNT, _INTRODUCTIONS, ".")):
            shutil.copyfile(path, folder / path.name)


# -- settings


def _read_own(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file; it names the site's table, see docs/flare.md")
    return read_toml(path)[1]


def _own_folder(workspace: Path, settings: dict[str, Any], name: str) -> Path:
    folder = settings.get("folder", FOLDER)
    if not isinstance(folder, str) or not folder:
        raise InputError(f"{workspace / 'local' / SETTINGS}: folder must be a path, got {folder!r}")
    return workspace / folder.replace("{site}", name)
