"""Run by alembic, which the program calls with a connection: in a transaction that nobody else can be in at the same time."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
