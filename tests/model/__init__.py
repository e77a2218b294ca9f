"""The rules stated a second time, without a database, and a machine that compares the two."""
