# Settings of this project, for a shell in its folder: . ./settings.sh
export BACKFILL_HOME="$PWD/state"      # where all embedded state is kept: lake, ClickHouse, Dagster
export BACKFILL_PROJECT="$PWD"         # a workspace.yaml or dagster.yaml here is used instead of the shipped one
export BACKFILL_PIPELINES='["my_company.logins"]'
export PYTHONPATH="$PWD"
# With a server instead of the embedded ClickHouse:
# export BACKFILL_CLICKHOUSE_URL='http://user:secret@clickhouse:8123'
