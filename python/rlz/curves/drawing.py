"""Curves as a picture, with matplotlib (`rlz[plot]`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlz.curves.groups import summary
from rlz.curves.intervals import CONFIDENCE, ENOUGH
from rlz.curves.reading import Source
from rlz.errors import CheckpointError, ConfigError, UsageError

FORMATS = (".svg", ".png")
LABELS = {"steps": "env steps", "time": "seconds of the run"}


def check_output(output: Path) -> None:
    """Raise for a file that cannot be drawn, before anything is read."""
    if output.suffix not in FORMATS:
        raise UsageError(f"--output {output}: expected a name that ends in {' or '.join(FORMATS)}, such as curves.svg")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output} cannot be written: there is no folder {output.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("rlz plot needs matplotlib, which is not installed: pip install 'rlz[plot]'") from error


def draw(groups: Mapping[str, Sequence[Source]], metric: str, axis: str, output: Path) -> None:
    """Draw every run of a group and its mean; of `ENOUGH` runs or more the interquartile mean with its interval."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, sources) in enumerate(groups.items()):
        colour = f"C{number % 10}"
        curves = [one for source in sources if (one := source.get(metric)) is not None]
        if axis == "time" and (
            without := [s.path for s, c in zip(sources, curves, strict=True) if _unknown(c.seconds)]
        ):
            raise CheckpointError(f"{without[0]} does not say when its values were measured. Use --x steps")
        found = summary(curves, axis)
        many = found is not None and found.low is not None
        label = name if len(curves) == 1 else f"{name} ({len(curves)} runs)"
        if not many:
            for curve in curves:
                alone = found is None and curve is curves[0]
                alpha, width = (1.0, 1.4) if found is None else (0.35, 0.9)
                (line,) = axes.plot(curve.over(axis), curve.values, color=colour, alpha=alpha, linewidth=width)
                line.set_label(label if alone else "_")
        if found is not None:
            axes.plot(found.x, found.middle, color=colour, linewidth=1.8, label=label)
            if found.low is not None and found.high is not None:
                axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel(LABELS[axis])
    axes.set_ylabel(metric)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="small")
    if any(len(sources) >= ENOUGH for sources in groups.values()):
        words = f"Of {ENOUGH} runs or more: interquartile mean, {CONFIDENCE:.0%} bootstrap interval"
        axes.set_title(words, fontsize="small", loc="left")
    with matplotlib.rc_context({"svg.hashsalt": "rlz"}):  # the same curves, the same file
        figure.savefig(output, dpi=150, metadata={"Date": None} if output.suffix == ".svg" else None)


def _unknown(seconds: np.ndarray) -> bool:
    return not np.isfinite(seconds).all()
