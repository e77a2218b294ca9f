"""Processes that are really killed, and what then is in their files (R52); durability itself."""
