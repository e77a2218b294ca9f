"""The rules, each over inline storage, a worker thread, and a crash after each step."""
