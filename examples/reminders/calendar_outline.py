"""The components of an iCalendar text and the lines they stand on, for errors that say where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .calendar_library import split_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEEPEST_NESTING = 10
_SHOWN_CHARACTERS = 60


class CalendarError(Exception):
    """A calendar that cannot be read; the message is one line that says what is wrong and where."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@attrs.frozen
class PropertyLine:
    """One unfolded content line; `number` is the line of the file on which it begins."""

    number: int
    text: str
    name: str
    parameters: Mapping[str, str]
    value: str


@attrs.define(eq=False)
class ComponentOutline:
    """A component as it stands in the file: where it begins, its lines, its subcomponents."""

    name: str
    line: int
    parent: ComponentOutline | None = None
    depth: int = 0
    lines: list[PropertyLine] = attrs.field(factory=list[PropertyLine])
    children: list[ComponentOutline] = attrs.field(factory=list["ComponentOutline"])

    def all_of(self, name: str) -> list[PropertyLine]:
        """Every line of the property `name`."""
        return [line for line in self.lines if line.name == name]

    def find(self, name: str) -> PropertyLine | None:
        """The line of a property that may stand here once.

        Raises:
            CalendarError: It stands here more often.
        """
        found = self.all_of(name)
        if len(found) > 1:
            raise self.error(f"{name} is given {len(found)} times, once is allowed", found[1])
        return found[0] if found else None

    def walk(self) -> Iterator[ComponentOutline]:
        """This component and all within it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def text(self) -> str:
        """The component as iCalendar text without folds."""
        inside = [line.text for line in self.lines] + [child.text() for child in self.children]
        return "\r\n".join([f"BEGIN:{self.name}", *inside, f"END:{self.name}"])

    def error(self, message: str, at: PropertyLine | None = None) -> CalendarError:
        """An error at the line `at`, else at the line where the component begins."""
        number = self.line if at is None else at.number
        return CalendarError(f"line {number}: {self.label()}: {message}")

    def label(self) -> str:
        """What the component is called in an error: its name, its UID, what it is part of."""
        uids = self.all_of("UID")
        label = f"{self.name} {shown(uids[0].value)}" if uids else self.name
        if self.parent is None or self.parent.name == "VCALENDAR":
            return label
        return f"{label} of {self.parent.label()}"


def printable(text: str) -> str:
    """The text on one line, with nothing in it that could steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def shown(text: str) -> str:
    """The text as an error quotes it: cut short, control characters escaped."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def outline(text: str) -> list[ComponentOutline]:
    """Find the calendars of an iCalendar text, each component with the line it begins on.

    Raises:
        CalendarError: A line is no property, or the components do not nest or do not end.
    """
    calendars: list[ComponentOutline] = []
    current: ComponentOutline | None = None
    for number, line_text in _unfolded(text):
        line = _property_line(number, line_text)
        if current is None:
            if calendars and line.name.startswith("X-"):
                continue  # some exporters add an X-COMMENT after the calendar
            if (line.name, _keyword(line)) != ("BEGIN", "VCALENDAR"):
                raise CalendarError(
                    f"line {number}: {shown(line_text)} stands where BEGIN:VCALENDAR is expected;"
                    " this is not an iCalendar file"
                )
            current = ComponentOutline("VCALENDAR", number)
            calendars.append(current)
        elif line.name == "BEGIN":
            current = _begin(current, line)
        elif line.name == "END":
            current = _end(current, line)
        else:
            current.lines.append(line)
    if current is not None:
        raise current.error("the file ends before END:" + current.name + "; is it truncated?")
    return calendars


def _unfolded(text: str) -> Iterator[tuple[int, str]]:
    """The content lines, each with the number of the line it begins on; empty ones are dropped."""
    pending: list[str] = []
    first = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r")
        if line[:1] in (" ", "\t") and pending:
            pending.append(line[1:])
        elif line:
            if pending:
                yield first, "".join(pending)
            pending, first = [line], number
    if pending:
        yield first, "".join(pending)


def _property_line(number: int, text: str) -> PropertyLine:
    try:
        name, parameters, value = split_line(text)
    except ValueError as error:
        raise CalendarError(
            f"line {number}: {shown(text)} is not a property of the form NAME:value"
        ) from error
    return PropertyLine(number, text, name.upper(), parameters, value)


def _keyword(line: PropertyLine) -> str:
    return line.value.strip().upper()


def _begin(parent: ComponentOutline, line: PropertyLine) -> ComponentOutline:
    component = ComponentOutline(_keyword(line), line.number, parent, parent.depth + 1)
    if component.depth > _DEEPEST_NESTING:
        raise CalendarError(
            f"line {line.number}: {line.text} nests more than {_DEEPEST_NESTING} components"
        )
    parent.children.append(component)
    return component


def _end(component: ComponentOutline, line: PropertyLine) -> ComponentOutline | None:
    if _keyword(line) != component.name:
        raise component.error(
            f"it begins on line {component.line} and {shown(line.text)} stands where"
            f" END:{component.name} is expected",
            line,
        )
    return component.parent
