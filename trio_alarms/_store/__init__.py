"""SQLite: the file and its lock, connections, schema, and every statement on our tables.

Synchronous throughout. Functions take an open connection and are called where it lives; nothing
here knows Trio but the two executors in `_executor`.
"""
