"""New code on the old schema, old code on the new one: a release is deployed while the other one works."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from app import resource
from app.demo.postgres import APPLICATION
from app.incidents import schema, service
from app.incidents.schema import SchemaError
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording, report

NEXT = f"{int(schema.HEAD) + 1:04d}"
LAST = f"{int(schema.HEAD) + 2:04d}"
HEAD = """
from alembic import op
revision = "{revision}"
down_revision = "{before}"
branch_labels = depends_on = None
"""
# What a next release might do: add a column that it fills, and later take one away that it no longer writes.
ADDS = HEAD + "def upgrade():\n    op.execute('ALTER TABLE incidents ADD COLUMN region text')\n"
TAKES = HEAD + "phase = 'post'\ndef upgrade():\n    op.execute('ALTER TABLE incidents DROP COLUMN wanted_seq')\n"


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """Two more revisions: one for before the deployment, one for after it."""
    folder = tmp_path / "migrations"
    shutil.copytree(resource("migrations"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"{NEXT}_next.py").write_text(ADDS.format(revision=NEXT, before=schema.HEAD))
    (folder / "versions" / f"{LAST}_last.py").write_text(TAKES.format(revision=LAST, before=NEXT))
    return folder


def become_next(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From here on this is the next release's code, as far as the schema goes."""
    patch.setattr(schema, "HEAD", LAST)
    patch.setattr(schema, "POST", (*schema.POST, LAST))
    patch.setattr(schema, "_scripts", lambda: folder)


async def works(database: Database) -> None:
    """Import, ask, take, record, read: what every release must be able to do."""
    store = Store(database.app)
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        asked = await service.request_replay(session, incident, "v1", who="ada", known=["v1"])
    async with store.write() as session:
        run = await service.claim_run(session, asked.id, worker="w", lease_s=60)
        assert run is not None
        assert await service.finish_run(session, run.id, run.attempt, report(3))
    async with store.read() as session:
        assert (await service.get_run(session, run.id)).state == "done"
    await store.close()


async def test_before_the_deployment_the_running_release_works_on(
    database: Database, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = schema.HEAD
    with monkeypatch.context() as patch:
        become_next(patch, next_release)
        with pytest.raises(SchemaError, match=f"at revision {ours}, and this Hindcast works with {LAST}; run `hindcas"):
            schema.check(database.app)  # the new code wants its columns first
        assert schema.upgrade(database.owner, application=APPLICATION, before_deploy=True) == NEXT
        told = schema.check(database.app)
        assert (told.at, told.wanted) == (NEXT, LAST)  # and starts while one revision is still to come
    # Old code, new schema.
    assert schema.check(database.app) == schema.Standing(NEXT, ours)
    await works(database)


async def test_after_the_deployment_old_code_is_refused_and_says_why(
    database: Database, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = schema.HEAD
    with monkeypatch.context() as patch:
        become_next(patch, next_release)
        schema.upgrade(database.owner, application=APPLICATION, before_deploy=True)
        assert schema.upgrade(database.owner, application=APPLICATION) == LAST
        assert schema.check(database.app) == schema.Standing(LAST, LAST)
    with pytest.raises(SchemaError, match=f"at revision {LAST}, and this Hindcast works with {ours}; upgrade this"):
        schema.check(database.app)
    store = Store(database.app)
    async with store.read() as session:
        with pytest.raises(SchemaError, match="upgrade this Hindcast"):
            await schema.standing(session)
    await store.close()


async def test_new_code_works_on_the_schema_that_it_needs_at_least(bare_database: Database) -> None:
    assert schema.upgrade(bare_database.owner, application=APPLICATION, before_deploy=True) == schema.needed()
    await works(bare_database)
    schema.upgrade(bare_database.owner, application=APPLICATION)
    await works(bare_database)


def test_the_post_deploy_revisions_are_those_that_say_so() -> None:
    config = Config()
    config.set_main_option("script_location", str(resource("migrations")))
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    said = {script.revision for script in scripts if getattr(script.module, "phase", "pre") == "post"}
    assert said == set(schema.POST)


# From here on what runs before a deployment only adds: the release that runs knows nothing of it.
RULE_SINCE = "0006"


def test_what_runs_before_a_deployment_only_adds(bare_database: Database) -> None:
    """A column that is gone, of another kind, or newly needs a value would break the code that still runs."""
    config = Config()
    config.set_main_option("script_location", str(resource("migrations")))
    revisions = sorted(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())
    assert all(re.fullmatch(r"\d{4}", revision) for revision in revisions)
    before: dict[tuple[str, str], tuple[str, bool]] = {}
    with psycopg.connect(bare_database.owner, autocommit=True) as watching:
        for revision in revisions:
            _upgrade_to(bare_database.owner, revision)
            after = {
                (table, column): (kind, needs_value)
                for table, column, kind, needs_value in watching.execute(
                    "SELECT table_name, column_name, udt_name, is_nullable = 'NO' AND column_default IS NULL"
                    " AND is_identity = 'NO' FROM information_schema.columns"
                    " WHERE table_schema = current_schema() AND table_name NOT LIKE 'procrastinate%'"
                )
            }
            if revision >= RULE_SINCE and revision not in schema.POST:
                tables = {table for table, _ in before}
                for name, (kind, needs_value) in before.items():
                    assert name in after, f"revision {revision} drops {name}; make it a post-deploy revision"
                    assert after[name][0] == kind, f"revision {revision} changes the kind of {name}"
                    assert needs_value or not after[name][1], f"revision {revision} makes {name} need a value"
                for name in after.keys() - before.keys():
                    added = f"revision {revision} adds {name} without a default, which older code does not fill"
                    assert name[0] not in tables or not after[name][1], added
            before = after


def _upgrade_to(url: str, revision: str) -> None:
    from alembic import command
    from sqlalchemy import create_engine

    engine = create_engine(schema.driver_url(url))
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(resource("migrations")))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
    engine.dispose()
