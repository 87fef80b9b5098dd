"""Run by alembic: migrate over the connection that `store.database.connection` passes. There is no offline mode."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
