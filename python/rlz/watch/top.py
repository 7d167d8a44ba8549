"""`rlz top`: a run in the terminal, as it is now."""

import time
from itertools import count
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from rlz.tracking.console import evaluation_line, live_view, number
from rlz.tracking.view import View
from rlz.watch.source import Cursor, Source

PERIOD_S = 1.0
WIDTH = 40
EVENTS = 6

_STYLES = {
    "act": "magenta",
    "environment": "green",
    "reset": "yellow",
    "copy": "cyan",
    "draw": "cyan",
    "update": "blue",
    "publish": "bright_yellow",
    "evaluate": "bright_magenta",
    "other": "bright_black",
}
_WAIT = "red"


def top(run: Path, *, once: bool = False) -> None:
    """Show a run until Ctrl-C, or until it has ended.

    Parameters
    ----------
    run : run folder.
    once : show it once, as it is now.
    """
    source, console, cursor = Source(run), Console(highlight=False), Cursor()
    events: list[str] = []
    try:
        with Screen(console=console, auto_refresh=False) as screen:
            for turn in count():
                view = source.look()
                cursor, news = source.news(cursor)
                events = [*([] if news["reset"] else events), *news["events"]][-EVENTS:]
                screen.update(whole(run.name, view, events), refresh=True)
                # One look at a live run has no rates yet.
                if view.status != "running" or (once and turn):
                    return
                time.sleep(PERIOD_S)
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
        if not console.is_terminal:
            console.line()  # a file or pipe gets the last screen without the end of its last line


def whole(name: str, view: View, events: list[str]) -> RenderableType:
    """All that is shown."""
    parts: list[RenderableType] = [Text(f"{name}: {view.status}", style="bold"), live_view(view)]
    parts += [Text(), bars(view)]
    if view.machine is not None:
        cores = " ".join(f"{busy:.0f} %" for busy in view.machine.cores)
        used, total = (size / 2**30 for size in (view.machine.memory_used, view.machine.memory_total))
        cards = "".join(f", {card.name} {card.busy:.0f} %" for card in view.machine.cards)
        parts.append(Text(f"cores {cores}, memory {used:,.1f} of {total:,.1f} GiB{cards}", style="dim"))
    if view.evaluation is not None:
        parts.append(evaluation_line(view.evaluation))
        parts.append(Text(f"best {number(view.best)}", style="dim"))
    parts += [Text(event, style="dim", overflow="ellipsis", no_wrap=True) for event in events]
    return Group(*parts)


def bars(view: View) -> RenderableType:
    """Where each worker's time goes: a bar each, then what it does now."""
    table = Table.grid(padding=(0, 1))
    for _ in range(3):
        table.add_column(no_wrap=True, overflow="ellipsis")
    seen: dict[str, str] = {}
    for name, shares in view.time().items():
        bar = Text()
        left = WIDTH
        for phase, share in shares.items():
            cells = min(left, round(share * WIDTH))
            if cells:
                seen[phase] = _STYLES.get(phase, _WAIT)
                bar.append("█" * cells, style=seen[phase])
                left -= cells
        bar.append("·" * left, style="bright_black")
        table.add_row(name, bar, Text(view.doing.get(name, ""), style="dim"))
    legend = Text()
    for phase, style in seen.items():
        legend.append("█ ", style=style)
        legend.append(f"{phase}  ")
    return Group(table, legend)
