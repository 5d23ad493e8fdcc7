"""The folders of a FLARE job, without FLARE."""

from silvan.federation.flare import JobFolders


def job_folders(workspace, name="", job="job-1"):
    """The folders of a job in a workspace, as FLARE lays them out."""
    return JobFolders(name, job, workspace, workspace / "startup", workspace / "local", workspace / job)
