"""Rings the reminders of a calendar file on an accelerated clock, through a kill.

Run it with `python -m examples.reminders`; `README.md` says what each module does.
"""
