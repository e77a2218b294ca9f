"""A long life under a fake clock."""
