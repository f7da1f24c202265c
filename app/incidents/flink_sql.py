"""The statements that store event logs: positions that move only from where they were believed, runs, lines by COPY."""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

FIND_LOG: Final = text(
    "SELECT id, position, mark, key_paths, state, streams, last_ns FROM flink_logs WHERE identity = :identity"
)
ADD_LOG: Final = text(
    "INSERT INTO flink_logs (identity, name, created_by, position, mark, records, garbage, unattributed, key_paths,"
    " streams, last_ns, state) VALUES (:identity, :name, :who, 0, '', 0, 0, 0, CAST(:paths AS json), '{}', 0, '[]')"
    " ON CONFLICT DO NOTHING"
)
NOTE_LOG: Final = text(
    "INSERT INTO audit_events (who, what, subject, origin, detail) VALUES (:who, :what, :subject, :origin,"
    " CAST(:detail AS json))"
)
MOVE_LOG: Final = text(
    "UPDATE flink_logs SET name = :name, position = :position, mark = :mark, records = records + :records,"
    " garbage = garbage + :garbage, unattributed = unattributed + :unattributed, key_paths = CAST(:paths AS json),"
    " streams = :streams, last_ns = greatest(last_ns, :last_ns), state = CAST(:state AS json),"
    " changed_at = clock_timestamp() WHERE id = :id AND position = :expected"
)
# Where a stream goes on in another file, so does the placing of its records.
BEFORE: Final = text(
    "SELECT state FROM flink_logs WHERE streams && CAST(:streams AS text[]) AND last_ns <= :first_ns AND id <> :id"
    " ORDER BY last_ns DESC LIMIT 1"
)

ADD_RUNS: Final = text(
    "INSERT INTO flink_runs (ref, form, job, task, subtask, status, first_ns, last_ns, records, executions, duplicates,"
    " shared, truncated, concluded, unfinished, terse, input_missing, partial, categories, tools, models, actions,"
    " words) SELECT ref, '', '', '', -1, 'unfinished', 0, 0, 0, 0, 0, 0, 0, 0, 0, false, false, false, '{}', '{}',"
    " '{}', '{}', '' FROM unnest(CAST(:refs AS text[])) AS new (ref) ORDER BY ref ON CONFLICT DO NOTHING"
)
# In the order of their ids, so that two importers never deadlock.
HOLD_RUNS: Final = text(
    "SELECT id, ref, records FROM flink_runs WHERE ref = ANY(CAST(:refs AS text[])) ORDER BY id FOR UPDATE"
)
LINES_OF: Final = text(
    "SELECT l.run_id, l.how, l.line, r.ref FROM (SELECT run_id, how, line, row_number() OVER (PARTITION BY run_id"
    " ORDER BY log_id, position) AS n FROM flink_records WHERE run_id = ANY(CAST(:runs AS bigint[]))) l"
    " JOIN flink_runs r ON r.id = l.run_id WHERE n <= :limit ORDER BY l.run_id, n"
)
SHARED: Final = text(
    "SELECT mine.run_id, count(DISTINCT mine.event) FROM flink_records mine WHERE mine.run_id = ANY(CAST(:runs AS"
    " bigint[])) AND mine.event IS NOT NULL AND EXISTS (SELECT 1 FROM flink_records other WHERE other.event ="
    " mine.event AND other.run_id <> mine.run_id) GROUP BY mine.run_id"
)
SUM_UP: Final = text(
    "UPDATE flink_runs SET form = :form, job = :job, task = :task, subtask = :subtask, key = :key, agent = :agent,"
    " status = :status, first_ns = :first_ns, last_ns = :last_ns, records = :records, executions = :executions,"
    " duplicates = :duplicates, shared = :shared, truncated = :truncated, concluded = :concluded,"
    " unfinished = :unfinished, terse = :terse, input_missing = :input_missing, partial = :partial,"
    " categories = :categories, tools = :tools, models = :models, actions = :actions,"
    " words = to_tsvector('simple', :words) WHERE id = :id"
)
GROW: Final = text("UPDATE flink_runs SET records = records + :more WHERE id = :id")

RECORD_COLUMNS: Final = {
    "log_id": "int8", "position": "int8", "run_id": "int8", "event": "int8", "how": "text", "note": "text",
    "line": "bytea",
}  # fmt: skip

TOTALS: Final = text(
    "WITH runs AS (SELECT DISTINCT run_id FROM flink_records WHERE log_id = ANY(CAST(:logs AS bigint[])) AND run_id IS"
    " NOT NULL), events AS (SELECT DISTINCT r.run_id, r.event FROM flink_records r JOIN flink_runs f ON f.id = r.run_id"
    " WHERE r.log_id = ANY(CAST(:logs AS bigint[])) AND r.event IS NOT NULL AND f.form = 'flat')"
    " SELECT count(*) AS runs, coalesce(sum(f.duplicates), 0) + (SELECT count(*) - count(DISTINCT event) FROM events)"
    " AS duplicates, coalesce(sum(f.truncated), 0) AS truncated, coalesce(sum(f.concluded), 0) AS concluded,"
    " count(*) FILTER (WHERE f.status = 'unfinished') AS unfinished, count(*) FILTER (WHERE f.status = 'failed') AS"
    " failed, count(*) FILTER (WHERE f.terse) AS not_verbose, count(DISTINCT f.key) AS keys FROM runs"
    " JOIN flink_runs f ON f.id = runs.run_id"
)
