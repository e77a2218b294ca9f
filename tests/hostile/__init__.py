"""What nobody sane would give: to every parameter, and in the place of stored payloads."""
