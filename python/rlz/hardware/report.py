"""A profile as Rich tables."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlz.bench.report import figure

_GIB = 2**30


def show(report: dict[str, Any], console: Console) -> None:
    """Print what `profile` returned."""
    parts: list[RenderableType] = [Text("Machine", style="bold"), _machine(report["hardware"])]
    if report["env"] is not None:
        parts += [Text(), Text(f"Measured for {report['env']}, each part alone", style="bold"), _measured(report)]
        parts.append(_updates(report["updates"]))
        parts += [Text(f"not measured within {report['budget_s']:.0f} s: {name}", "dim") for name in report["skipped"]]
        parts.append(Text(verdict(report)))
    console.print(Group(*parts))


def _machine(hardware: dict[str, Any]) -> Table:
    table = _table()
    table.add_row("CPU", f"{hardware['cpu']} ({hardware['architecture']})")
    table.add_row("SIMD", " ".join(hardware["simd"]) or "-")
    quota = "" if hardware["cpu_quota"] is None else f", quota {hardware['cpu_quota']:.3g}"
    cores = (
        f"{hardware['cores']} usable ({hardware['cores_online']} online, {hardware['cores_allowed']} allowed{quota})"
    )
    table.add_row("cores", cores)
    limit = "" if hardware["memory_limit"] is None else f", limit {hardware['memory_limit'] / _GIB:.1f} GiB"
    available = hardware["memory_available"] / _GIB
    table.add_row("memory", f"{hardware['memory'] / _GIB:.1f} GiB, {available:.1f} GiB available{limit}")
    for gpu in hardware["gpus"]:
        capability = f"compute capability {gpu['compute_capability']}, driver {gpu['driver']}"
        table.add_row("GPU", f"{gpu['name']}, {gpu['memory'] / _GIB:.0f} GiB, {capability}")
    if not hardware["gpus"]:
        table.add_row("GPU", "none")
    container = f", in {hardware['container']}" if hardware["container"] else ""
    table.add_row("system", f"Linux {hardware['kernel']}, Python {hardware['python']}{container}")
    table.add_row("versions", ", ".join(f"{name} {found}" for name, found in hardware["versions"].items()))
    return table


def _measured(report: dict[str, Any]) -> Table:
    table = _table()
    sampling, replay = report["sampling"], report["replay"]
    table.add_row(
        "sampling, 1 process",
        f"{figure(sampling['env_steps_per_s'])} env steps/s,"
        f" {sampling['share_of_bare']:.0%} of a bare loop over the environment",
    )
    table.add_row("replay, append", f"{figure(replay['append_rows_per_s'])} rows/s of {replay['row_bytes']} bytes")
    for batch in (256, 8192):
        table.add_row(f"replay, sample {batch}", f"{figure(replay[f'sample_{batch}_rows_per_s'])} rows/s")
    return table


def _updates(rates: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("updates, batch 256")
    for heading in ("threads", "updates/s", "frames/s", "ready after"):
        table.add_column(heading, justify="right")
    for rate in rates:
        cells = (f"{rate['updates_per_s']:,.1f}", figure(rate["frames_per_s"]), f"{rate['ready_s']:.1f} s")
        table.add_row(f"{rate['device']}, {rate['executor']}", str(rate["threads"]), *cells)
    return table


def verdict(report: dict[str, Any]) -> str:
    """Say which side limits a run at replay ratio 1."""
    if not report["updates"]:
        return "No update rate was measured: give more time with --budget."
    best = max(report["updates"], key=lambda rate: rate["updates_per_s"])
    updates, steps = best["updates_per_s"], report["sampling"]["env_steps_per_s"]
    if updates < steps:
        return (
            f"At replay ratio 1 updates are the limit: {updates:,.0f}/s at best ({best['executor']}, {best['threads']}"
            f" threads on {best['device']}), while one sampler gives {steps:,.0f} env steps/s."
        )
    return (
        f"At replay ratio 1 sampling is the limit: {steps:,.0f} env steps/s of one sampler, {updates:,.0f} updates/s."
    )


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table
