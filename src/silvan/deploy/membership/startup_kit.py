"""Writes FLARE's startup folders and jobs: only silvan's classes may run, no code is shipped, no logs are sent.

We do not use FLARE's provisioning, which creates and stores all keys in one place: here a site's key never leaves the
site. The format is that of FLARE 2.9.
"""

import json
from pathlib import Path
from typing import Any

JOBS = "silvan.deploy.jobs."
COORDINATOR = f"{JOBS}Coordinator"
PROJECT = "silvan"
ADMIN = "coordinator@silvan"
SCHEME = "tcp"
MEMBER = "member.json"  # beside FLARE's folder, if silvan created the site
_LAUNCHERS, _COMMON = "silvan.deploy.jobs.launchers.", "nvflare.app_common."

HEARTBEAT = 20
"""Seconds after which FLARE sends something over an idle connection; many proxies cut it after 60, FLARE's default."""

_OF_LEAD = "submit_job", "manage_job", "view", "operate"
_OF_NOBODY = "clone_job", "download_job", "shell_commands", "byoc", "server-predeployed-flwr"
"""The permissions of FLARE's users: all for the coordinator, none for others."""


def write_server(folder: Path, host: str, port: int) -> None:
    """Write the server's folder; its key and certificate are ``startup/server.key`` and ``.crt``."""
    service = {"target": f"{host}:{port}", "scheme": SCHEME}
    server = {"name": PROJECT, "service": service, "admin_server": host, "admin_port": port, **_tls("server")}
    _write(folder / "startup" / "fed_server.json", {"format_version": 2, "servers": [server]})
    kept, persistor = folder / "kept", f"{_COMMON}state_persistors.storage_state_persistor.StorageStatePersistor"
    storage = f"{_COMMON}storages.filesystem_storage.FilesystemStorage"
    snapshots = {"path": storage, "args": {"root_dir": str(kept / "snapshots"), "uri_root": "/"}}
    scheduling = {"min_schedule_interval": 0.1, "max_schedule_interval": 1.0, "max_jobs": 32}  # some wait for days
    of_jobs = {"uri_root": str(kept / "jobs"), "job_store_id": "job_store"}
    limits = {"max_num_clients": 1000, "heart_beat_timeout": 60, "admin_timeout": 10.0}
    resources = {
        **_allowed_classes(),
        "servers": [{"admin_storage": "transfer", "download_job_url": "http://localhost/", **limits}],
        "snapshot_persistor": {"path": persistor, "args": {"uri_root": "/", "storage": snapshots}},
        "components": [
            _component("job_scheduler", f"{_COMMON}job_schedulers.job_scheduler.DefaultJobScheduler", **scheduling),
            _component("job_manager", "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", **of_jobs),
            _component("job_store", storage),
            _component("process_launcher", f"{_LAUNCHERS}ServerLauncher"),
        ],
    }
    _write_local(folder, resources)


def write_site(folder: Path, name: str, host: str, port: int) -> None:
    """Write a site's folder; its key and certificate are ``startup/client.key`` and ``.crt``."""
    server = {"name": PROJECT, "service": {"target": f"{host}:{port}", "scheme": SCHEME}, "identity": host}
    client = {**_tls("client"), "fqsn": name, "is_leaf": True}
    _write(folder / "startup" / "fed_client.json", {"format_version": 2, "servers": [server], "client": client})
    managers, consumers = f"{_COMMON}resource_managers", f"{_COMMON}resource_consumers"
    no_gpu = {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300}
    resources = {
        **_allowed_classes(),
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            _component("resource_manager", f"{managers}.gpu_resource_manager.GPUResourceManager", **no_gpu),
            _component("resource_consumer", f"{consumers}.gpu_resource_consumer.GPUResourceConsumer"),
            _component("process_launcher", f"{_LAUNCHERS}SiteLauncher"),
        ],
    }
    _write_local(folder, resources)


def write_admin(folder: Path, host: str, port: int) -> None:
    """Write the folder that submits studies; its key and certificate are ``startup/client.key`` and ``.crt``."""
    # the server runs on this machine, whose public address may lead elsewhere from inside
    server = {"server_identity": host, "scheme": SCHEME, "host": "localhost", "port": port}
    admin = {
        "project_name": PROJECT,
        "username": ADMIN,
        "uid_source": "user_input",
        **server,
        "connection_security": "mtls",
        "client_key": "client.key",
        "client_cert": "client.crt",
        "ca_cert": "rootCA.pem",
        "with_file_transfer": True,
        "upload_dir": "transfer",
        "download_dir": "transfer",
    }
    _write(folder / "startup" / "fed_admin.json", {"format_version": 1, "admin": admin})
    (folder / "transfer").mkdir(exist_ok=True)
    seconds = {"idle_timeout": 900.0, "login_timeout": 10.0, "authenticate_msg_timeout": 2.0}
    limits = {**seconds, "with_debug": False, "prompt": "> "}
    _write(folder / "local" / "resources.json", {"format_version": 1, "admin": limits})


def process_file(job: Path) -> Path:
    """Return the file that names the process of the server's part of a job, in the job's folder at the server."""
    return job / "server.pid"


def write_job(
    folder: Path,
    name: str,
    sites: list[str],
    arguments: dict[str, Any],
    *,
    quorum: int | None = None,
    coordinator: str = COORDINATOR,
) -> None:
    """Write a job: the names of the classes at the server and at the sites, and their arguments.

    FLARE starts it when all sites are connected, or as many as the quorum says.
    """
    needed = {"min_clients": quorum or len(sites), "mandatory_clients": [] if quorum else sites}
    meta = {"name": name, "resource_spec": {}, **needed, "deploy_map": {"app": ["server", *sites]}}
    _write(folder / "meta.json", meta)
    config = folder / "app" / "config"
    workflow = {"id": "study", "path": coordinator, "args": arguments}
    _write(config / "config_fed_server.json", {"format_version": 2, "workflows": [workflow], "components": []})
    executor = {"path": f"{JOBS}SiteExecutor", "args": arguments}
    tasks = [{"tasks": ["silvan"], "executor": executor}]
    _write(config / "config_fed_client.json", {"format_version": 2, "executors": tasks, "components": []})


def _allowed_classes() -> dict[str, Any]:
    return {"format_version": 2, "class_list_enforcement_mode": "enforce", "class_allow_list": [JOBS]}


def _tls(kind: str) -> dict[str, Any]:
    own = {"ssl_private_key": f"{kind}.key", "ssl_cert": f"{kind}.crt"}
    return {**own, "ssl_root_cert": "rootCA.pem", "connection_security": "mtls"}


def _component(id_: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "path": path, "args": arguments}


def _write_local(folder: Path, resources: dict[str, Any]) -> None:
    """Write the files that a machine's owner may change: resources, permissions, logging."""
    local = folder / "local"
    _write(local / "resources.json", resources)
    nobody = dict.fromkeys((*_OF_LEAD, *_OF_NOBODY), "none")
    lead = {**nobody, **dict.fromkeys(_OF_LEAD, "any")}
    roles = {"project_admin": nobody, "org_admin": nobody, "lead": lead, "member": nobody}
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": roles})
    _write(local / "log_config.json", _LOG)
    _write(local / "comm_config.json", {"heartbeat_interval": HEARTBEAT})
    (folder / "transfer").mkdir(exist_ok=True)


_FILE = {
    "class": "logging.handlers.RotatingFileHandler",
    "formatter": "plain",
    "maxBytes": 10**7,
    "backupCount": 3,
}
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "logFileHandler": {**_FILE, "level": "INFO", "filename": "log.txt"},
        "errorFileHandler": {**_FILE, "level": "ERROR", "filename": "error_log.txt"},
    },
    "loggers": {"root": {"level": "INFO", "handlers": ["logFileHandler", "errorFileHandler"]}},
}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
