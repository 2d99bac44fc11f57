"""An Airflow DAG: each hour, bring the table of a topic up to date, and rebuild what dbt derives from it.

For Airflow 3. Copy the file to the folder of DAGs, and set the four values below. A run that fails or is repeated loses
and repeats no message: lake.py continues where its checkpoint ends.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

CHECKOUT = "/opt/nsq_compat"
TOPIC = "events"
LOOKUPD = "10.0.0.5:4161"
SHARED = "/shared"

LAKE = (
    f"spark-submit {CHECKOUT}/spark/jobs/lake.py --topic {TOPIC} --lookupd-http-address {LOOKUPD} --once "
    f"--checkpoint {SHARED}/lake-checkpoint --path {SHARED}/lake --compact-after 1"
)
MODELS = f"dbt build --project-dir {CHECKOUT}/contrib/dbt --profiles-dir {CHECKOUT}/contrib/dbt"

with DAG(
    "nsq_lake",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # The table has one writer.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
):
    lake = BashOperator(task_id="lake", bash_command=LAKE)
    models = BashOperator(task_id="models", bash_command=MODELS)
    lake >> models
