"""How Alembic reaches the database: over the connection that `app.incidents.schema` hands it, and no other way."""

from alembic import context

from app.incidents import access_models as _access_models  # noqa: F401
from app.incidents import case_models as _case_models  # noqa: F401
from app.incidents import decodings as _decodings  # noqa: F401
from app.incidents import flink_models as _flink_models  # noqa: F401
from app.incidents import live_models as _live_models  # noqa: F401  its tables belong to the metadata
from app.incidents import pool as _pool  # noqa: F401
from app.incidents import purge_models as _purge_models  # noqa: F401
from app.incidents import share_models as _share_models  # noqa: F401
from app.incidents.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations with `hindcast migrate`; it knows the database and the roles")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    transaction_per_migration=True,
    include_name=lambda name, kind, _: (
        not (kind == "table" and name in ("queue_schema", "schema_floor"))
        and not (name or "").startswith("procrastinate")
    ),
)
with context.begin_transaction():
    context.run_migrations()
