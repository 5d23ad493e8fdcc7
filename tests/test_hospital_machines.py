"""Three real sites with the same kind of patients: OMOP in SQLite, OMOP in PostgreSQL and FHIR files, in one study."""

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")
pytest.importorskip("sqlglot", reason="sqlglot is not installed: pip install 'silvan[omop]'")
pytest.importorskip("sqlonfhir", reason="sqlonfhir is not installed: pip install 'silvan[fhir]'")

from helpers.hasty_sites import hasty_sites
from helpers.hospitals import load_postgres
from helpers.postgres import postgres  # noqa: F401  a fixture

from silvan.deploy.service import start_stop
from silvan.deploy.service.start_stop import process_of, processes_of, stop_all
from silvan.deploy.service.supervise import Supervisor
from silvan.study.demo_hospitals import STUDY, make_patients, write_fhir, write_omop
from silvan.study.parse import parse_remote_study
from silvan.study.study_file import make_federation, make_learner, read_study

LEARNER = '[learner]\nkind = "HistogramForest"\nn_estimators = 5\nmax_depth = 4\n'
HEAD = 'label = "stroke_in_two_years"\ntest = 0.2\ndescribe = true\n'


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_real_sites_with_omop_and_fhir_give_the_forest_of_one_process(postgres, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SILVAN_DATABASE_PASSWORD", postgres.password)
    made = [make_patients(300, seed=i, first=1 + 300 * i) for i in range(3)]
    write_omop(tmp_path / "north.db", *made[0], version="v5.3")
    load_postgres(postgres, "cdm_of_south", made[1])
    write_fhir(tmp_path / "west", *made[2])
    sources = {
        "north": f"omop:sqlite:///{tmp_path}/north.db",
        "south": f"omop:{postgres.url(schema='cdm_of_south')}",
        "west": f"fhir:{tmp_path}/west",
    }
    study = parse_remote_study(
        f'name = "stroke"\nsampling = "published"\nsites = ["north", "south", "west"]\n{HEAD}{STUDY}\n{LEARNER}'
    )
    with hasty_sites():
        hub, members = start_stop.make_local(tmp_path / "machines", sources)
    try:
        record = Supervisor(hub, study).run_to_end().read()
    finally:
        stop_all([*map(process_of, members), *processes_of(hub)])
    path = tmp_path / "here.toml"
    places = "\n".join(f'{site} = "{place}"' for site, place in sources.items())
    path.write_text(f"{HEAD}[sites]\n{places}\n{STUDY}\n{LEARNER}")
    here = read_study(path)
    federation = make_federation(here)
    forest = make_learner(here, federation.schema).fit(federation).forest_
    assert record.status == "done"
    assert [model.hash for model in record.models if not model.site] == [forest.hash]
    assert record.table_one is not None
