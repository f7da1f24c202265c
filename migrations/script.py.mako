"""${message}."""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say here why the tables change."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Say here what going back loses, or refuse."""
    ${downgrades if downgrades else "pass"}
