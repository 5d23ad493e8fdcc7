"""A study as a FLARE recipe, for those who run jobs from Python: in FLARE's simulator, in POC mode, in production."""

from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from silvan.deploy.jobs.coordinator_job import Coordinator
from silvan.deploy.jobs.job_folder import job_arguments, job_name, sites_of
from silvan.deploy.jobs.site_job import SiteExecutor
from silvan.study.study_file import read_remote_study


class StudyRecipe(Recipe):
    """A study as a FLARE recipe: ``StudyRecipe("study.toml").execute(ProdEnv(...))``.

    Parameters
    ----------
    study
        A study file that names its sites, FLARE's clients.
    """

    def __init__(self, study: str | Path) -> None:
        plan = read_remote_study(Path(study))
        sites = sites_of(plan)
        arguments = job_arguments(plan, sites)
        mandatory = None if plan.quorum else sites
        job = FedJob(name=job_name(plan), min_clients=plan.quorum or len(sites), mandatory_clients=mandatory)
        job.set_app_packages(["silvan"])  # so that FLARE ships none of its code
        job.to_server(Coordinator(**arguments), id="study")
        for site in sites:
            job.to(SiteExecutor(**arguments), site, tasks=["silvan"])
        super().__init__(job)
