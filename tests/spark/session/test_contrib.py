"""The examples for Airflow and dbt in contrib/, as far as they can be checked without either.

The DAG is parsed, and its commands by the job that they start. dbt's model is rendered, and run by Spark on a table of
lake.py.
"""

import ast
import shlex
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from spark.jobs import lake
from tests.spark.session.test_jobs import log, run

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]

log = log  # the fixture

CONTRIB = Path("contrib")
DBT = CONTRIB / "dbt"


def test_the_dag_starts_the_lake_with_flags_that_it_has_and_then_dbt():
    tree = ast.parse((CONTRIB / "airflow" / "nsq_lake.py").read_text())
    # The values need no Airflow.
    values: dict[str, Any] = {}
    exec(compile(ast.Module([each for each in tree.body if isinstance(each, ast.Assign)], []), "dag", "exec"), values)
    submit, job, *flags = shlex.split(values["LAKE"])
    assert submit == "spark-submit"
    assert Path(job).relative_to(values["CHECKOUT"]) == Path("spark/jobs/lake.py")
    given = lake.parser().parse_args(flags)
    assert (given.topic, given.once, given.path) == ("events", True, "/shared/lake")
    words = shlex.split(values["MODELS"])
    assert words[:2] == ["dbt", "build"]
    assert {Path(each).relative_to(values["CHECKOUT"]) for each in words[3::2]} == {DBT}
    (dag,) = (each for each in tree.body if isinstance(each, ast.With))
    assert ast.unparse(dag.body[-1]) == "lake >> models"
    names = {word.value.id for each in ast.walk(dag) if isinstance(each, ast.Call)
             for word in each.keywords if word.arg == "bash_command" and isinstance(word.value, ast.Name)}  # fmt: skip
    assert names == {"LAKE", "MODELS"}


def loaded(name: str) -> Any:
    return yaml.safe_load((DBT / name).read_text())


def test_the_files_of_the_dbt_project_name_each_other():
    project, profiles = loaded("dbt_project.yml"), loaded("profiles.yml")
    assert profiles[project["profile"]]["outputs"][profiles[project["profile"]]["target"]]["type"] == "duckdb"
    models = {each["name"] for each in loaded("models/models.yml")["models"]}
    assert {path.stem for path in (DBT / "models").glob("*.sql")} == models
    assert set(project["models"]) == {project["name"]}


def test_the_dbt_model_runs_on_a_lake(spark, retaining, topic, send, log, tmp_path):
    bodies = send(30)
    assert run("lake", *log) == 0
    (source,) = loaded("models/sources.yml")["sources"]
    known = {(source["name"], table["name"]) for table in source["tables"]}

    def reference(*name: str) -> str:
        assert name in known
        return "_".join(name)

    spark.read.parquet(str(tmp_path / "table")).createOrReplaceTempView("nsq_messages")
    rendered = jinja2.Template((DBT / "models" / "messages_per_hour.sql").read_text()).render(source=reference)
    rows = spark.sql(rendered).collect()
    (model,) = loaded("models/models.yml")["models"]
    assert {column["name"] for column in model["columns"]} <= set(rows[0].asDict())
    assert sum(row.messages for row in rows) == 30
    assert sum(row.twice for row in rows) == 0
    assert sum(row.bytes for row in rows) == sum(map(len, bodies))
    assert {row.topic for row in rows} == {topic}
    # DuckDB is given the files of the table: two folders deep, as the source says.
    place = jinja2.Template(source["meta"]["external_location"]).render(env_var=lambda *_: str(tmp_path / "table"))
    pattern = place.split("'")[1]
    assert set(tmp_path.glob(str(Path(pattern).relative_to(tmp_path)))) == set((tmp_path / "table").rglob("*.parquet"))
