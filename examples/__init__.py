"""Programs that show trio_alarms at work; each lives in a package of its own."""
