"""Draws the state diagrams of the design page: `python docs/diagrams.py` rewrites docs/_static.

By hand and not by a tool, so that building the documentation needs no other program and no
network. `tests/test_documentation.py` checks that the committed files are what this draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Literal, TypeAlias

import attrs

STATIC = Path(__file__).parent / "_static"
BOX_WIDTH = 150
BOX_HEIGHT = 52
LINE_HEIGHT = 16

Point: TypeAlias = tuple[float, float]
Side: TypeAlias = Literal["top", "bottom", "left", "right"]

STYLE = """\
text { font: 13px sans-serif; fill: #1f2430; text-anchor: middle; }
.name { font-weight: bold; font-size: 14px; }
.label { font-size: 13px; fill: #3b4252; }
.start { text-anchor: start; }
.end { text-anchor: end; }
rect.box { fill: #eef3fb; stroke: #4a6fa5; stroke-width: 1.4; }
rect.none { fill: #ffffff; stroke-dasharray: 5 4; }
rect.held { fill: #fdf1dc; stroke: #b7791f; }
path { fill: none; stroke: #4a5568; stroke-width: 1.3; marker-end: url(#arrow); }
#arrow path { fill: #4a5568; stroke: none; marker-end: none; }"""


@attrs.frozen
class State:
    """A box: its centre, its name, a remark under the name, and which kind it is."""

    x: float
    y: float
    name: str
    remark: str
    kind: Literal["", "none", "held"] = ""

    def side(self, side: Side, shift: float = 0) -> Point:
        """The middle of a side, moved along that side by `shift`."""
        return {
            "top": (self.x + shift, self.y - BOX_HEIGHT / 2),
            "bottom": (self.x + shift, self.y + BOX_HEIGHT / 2),
            "left": (self.x - BOX_WIDTH / 2, self.y + shift),
            "right": (self.x + BOX_WIDTH / 2, self.y + shift),
        }[side]

    def svg(self) -> str:
        """The box with its one or two lines of text."""
        left, top = self.x - BOX_WIDTH / 2, self.y - BOX_HEIGHT / 2
        name_y = self.y - 5 if self.remark else self.y + 4
        remark = f'<text x="{self.x:g}" y="{self.y + 13:g}">{escape(self.remark)}</text>\n'
        return (
            f'<rect class="box {self.kind}" x="{left:g}" y="{top:g}" width="{BOX_WIDTH}"'
            f' height="{BOX_HEIGHT}" rx="9"/>\n'
            f'<text class="name" x="{self.x:g}" y="{name_y:g}">{escape(self.name)}</text>\n'
        ) + (remark if self.remark else "")


@attrs.frozen
class Arrow:
    """A line through points, with its label's lines beside a point of their own."""

    points: tuple[Point, ...]
    label: str
    at: Point
    anchor: Literal["", "start", "end"] = ""

    def svg(self) -> str:
        """The line and its label."""
        path = " L ".join(f"{x:g} {y:g}" for x, y in self.points)
        x, y = self.at
        lines = "".join(
            f'<text class="label {self.anchor}" x="{x:g}" y="{y + LINE_HEIGHT * row:g}">'
            f"{escape(text)}</text>\n"
            for row, text in enumerate(self.label.split("\n"))
        )
        return f'<path d="M {path}"/>\n{lines}'


def drawing(width: int, height: int, title: str, states: list[State], arrows: list[Arrow]) -> str:
    """A whole SVG file."""
    parts = "".join([*(arrow.svg() for arrow in arrows), *(state.svg() for state in states)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img">\n<title>{escape(title)}</title>\n'
        f"<style>\n{STYLE}\n</style>\n"
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M 0 0 L 10 5 L 0 10 z"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{parts}</svg>\n'
    )


def automatic_alarm() -> str:
    """What can happen to an alarm that its handler's return acknowledges."""
    absent = State(110, 70, "no row", "", "none")
    waiting = State(410, 70, "waiting", "wake_at after now")
    due = State(710, 70, "due", "wake_at not after now")
    in_hand = State(710, 230, "in hand", "its handler runs", "held")
    backing_off = State(410, 390, "backing off", "1, 2, 4 … 64 s")
    parked = State(710, 390, "parked", "reported, then hourly")
    arrows = [
        Arrow(
            (absent.side("right", -12), waiting.side("left", -12)), "schedule, ensure", (260, 50)
        ),
        Arrow((waiting.side("left", 12), absent.side("right", 12)), "cancel", (260, 98)),
        Arrow((waiting.side("right"), due.side("left")), "time passes", (560, 62)),
        Arrow(
            (due.side("bottom", -30), in_hand.side("top", -30)),
            "a pass re-reads it",
            (672, 152),
            "end",
        ),
        Arrow(
            (in_hand.side("top", 30), due.side("bottom", 30)),
            "cancelled, or crash: as\nit was, not charged",
            (748, 145),
            "start",
        ),
        Arrow(
            (in_hand.side("left", -8), (110, 222), absent.side("bottom")),
            "a one-shot: returned, or failed and skipped",
            (250, 214),
        ),
        Arrow(
            (in_hand.side("left", 8), (430, 238), waiting.side("bottom", 20)),
            "a repeat: next occurrence; or\nscheduled anew: from outside,\nor with progress",
            (424, 130),
            "end",
        ),
        Arrow(
            (in_hand.side("bottom", -50), (660, 310), (410, 310), backing_off.side("top")),
            "failed, or re-armed itself without progress",
            (535, 302),
        ),
        Arrow(
            (in_hand.side("bottom"), parked.side("top")),
            "the same, with the last\nattempt of its budget",
            (722, 305),
            "start",
        ),
        Arrow(
            (backing_off.side("left"), (20, 390), (20, 20), (690, 20), due.side("top", -20)),
            "time passes",
            (180, 382),
        ),
        Arrow(
            (parked.side("right"), (930, 390), (930, 70), due.side("right")),
            "an hour passes",
            (922, 270),
            "end",
        ),
    ]
    return drawing(
        950,
        440,
        "The states of an automatic alarm",
        [absent, waiting, due, in_hand, backing_off, parked],
        arrows,
    )


def manual_alarm() -> str:
    """What can happen to an alarm that only its handler may end."""
    absent = State(110, 70, "no row", "", "none")
    waiting = State(410, 70, "waiting", "wake_at after now")
    due = State(710, 70, "due", "wake_at not after now")
    in_flight = State(710, 230, "in flight", "moved by 1 s, in hand", "held")
    arrows = [
        Arrow(
            (absent.side("right", -12), waiting.side("left", -12)), "schedule, ensure", (260, 50)
        ),
        Arrow((waiting.side("left", 12), absent.side("right", 12)), "cancel", (260, 98)),
        Arrow((waiting.side("right"), due.side("left")), "time passes", (560, 62)),
        Arrow(
            (due.side("bottom"), in_flight.side("top")),
            "a pass moves it,\nruns its handler",
            (722, 145),
            "start",
        ),
        Arrow(
            (in_flight.side("left", -8), (110, 222), absent.side("bottom")),
            "its handler cancels it",
            (220, 214),
        ),
        Arrow(
            (in_flight.side("left", 8), (430, 238), waiting.side("bottom", 20)),
            "its handler schedules it; or\nreturns or fails: in an hour",
            (424, 145),
            "end",
        ),
        Arrow(
            (in_flight.side("right"), (840, 230), (840, 70), due.side("right")),
            "pass cancelled,\nor crash: in 1 s",
            (850, 145),
            "start",
        ),
    ]
    return drawing(
        950, 280, "The states of a manual alarm", [absent, waiting, due, in_flight], arrows
    )


def alarm_pass() -> str:
    """What a pass goes through, and where it can fail."""
    idle = State(120, 70, "no pass", "the driver sleeps", "none")
    waiting = State(420, 70, "waiting", "for defer_wakes scopes")
    acquiring = State(720, 70, "acquiring", "enters the event scope")
    dispatching = State(720, 230, "dispatching", "guarded; handlers run", "held")
    closing = State(330, 230, "closing", "shielded")
    arrows = [
        Arrow(
            (idle.side("right"), waiting.side("left")),
            "a delivery, or a\ncheck after an event",
            (270, 47),
        ),
        Arrow((waiting.side("right"), acquiring.side("left")), "no scope is open", (570, 62)),
        Arrow(
            (acquiring.side("bottom"), dispatching.side("top")),
            "the guard is committed",
            (732, 152),
            "start",
        ),
        Arrow(
            (dispatching.side("left"), closing.side("right")),
            "handlers done, failed or cancelled;\nthe event scope is left",
            (525, 247),
        ),
        Arrow(
            (acquiring.side("bottom", -50), (670, 145), (390, 145), closing.side("top", 60)),
            "it failed: nothing is charged, and\nthe next try is held back",
            (530, 163),
        ),
        Arrow(
            (waiting.side("bottom", -60), closing.side("top", 30)),
            "nothing due,\nor cancelled",
            (352, 117),
            "end",
        ),
        Arrow(
            (closing.side("left"), (120, 230), idle.side("bottom")),
            "native alarm := earliest wake_at;\nwho has joined goes on",
            (132, 160),
            "start",
        ),
    ]
    return drawing(
        890, 280, "The stages of a pass", [idle, waiting, acquiring, dispatching, closing], arrows
    )


def drawings() -> dict[str, str]:
    """Every diagram by its file's name."""
    return {
        "alarm-automatic.svg": automatic_alarm(),
        "alarm-manual.svg": manual_alarm(),
        "pass.svg": alarm_pass(),
    }


def main() -> None:
    """Write the files."""
    STATIC.mkdir(exist_ok=True)
    for name, svg in drawings().items():
        (STATIC / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
