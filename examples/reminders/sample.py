"""The calendar that ships: a week across the change to summer time in Europe."""

from __future__ import annotations

from datetime import date
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample.ics")
SAMPLE_FIRST_DAY = date(2026, 3, 27)
