"""A profile, and a plan, as Rich tables."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlz.bench.report import figure
from rlz.planning.hints import hints
from rlz.planning.model import DEFAULT_SPIN, bound
from rlz.planning.plan import Plan, explain
from rlz.planning.profile_model import Profile, Sampling, Transport
from rlz.system.detect import Hardware

_GIB = 2**30


def show(profile: Profile, console: Console) -> None:
    """Print a profile."""
    parts: list[RenderableType] = [_title("Machine"), _machine(profile.hardware)]
    parts += [Text(f"note: {caution}", "yellow") for caution in profile.hardware.cautions()]
    if profile.workload is None:
        parts += [Text(), _title("Memory, matrix products, copies"), _products(profile)]
    else:
        parts += [Text(), _title(f"Each part alone, for {profile.workload.algo} on {profile.workload.env}")]
        if profile.sampling is not None:
            parts += [_sampling(profile.sampling), _scaling(profile.sampling)]
        if profile.transport is not None:
            parts.append(_transport(profile.transport))
        parts += [_updates(profile), _products(profile)]
        if profile.joint:
            title = "Samplers and learner together (waits: part of the time, samplers/learner)"
            parts += [Text(), _title(title), _joint(profile)]
        parts += [Text(f"hint: {hint}", "yellow") for hint in hints(profile)]
    parts += [Text(f"not measured within {profile.budget_s:.0f} s: {name}", "dim") for name in profile.skipped]
    console.print(Group(*parts))


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan with its reasons."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("choice", "value", "reason"):
        table.add_column(heading, overflow="fold")
    for row in explain(plan):
        table.add_row(*row)
    console.print(Group(Text(), _title("Plan"), table))


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _machine(hardware: Hardware) -> Table:
    table = _table()
    table.add_row("CPU", f"{hardware.cpu} ({hardware.architecture})")
    table.add_row("SIMD", " ".join(hardware.simd) or "-")
    quota = "" if hardware.cpu_quota is None else f", quota {hardware.cpu_quota:.3g}"
    cores = f"{hardware.cores} usable ({hardware.cores_online} online, {hardware.cores_allowed} allowed{quota})"
    table.add_row("cores", cores)
    limit = "" if hardware.memory_limit is None else f", limit {hardware.memory_limit / _GIB:.1f} GiB"
    available = hardware.memory_available / _GIB
    nodes = f", {len(hardware.numa)} NUMA nodes" if len(hardware.numa) > 1 else ""
    shm = "" if hardware.shm is None else f", /dev/shm {hardware.shm / _GIB:.1f} GiB"
    table.add_row("memory", f"{hardware.memory / _GIB:.1f} GiB, {available:.1f} GiB available{limit}{nodes}{shm}")
    for gpu in hardware.gpus:
        capability = f"compute capability {gpu.compute_capability}, driver {gpu.driver}"
        table.add_row("GPU", f"{gpu.name}, {gpu.memory / _GIB:.0f} GiB, {capability}")
    if not hardware.gpus:
        table.add_row("GPU", "none")
    if hardware.gpu_links:
        table.add_row("links", ", ".join(f"{link.first}-{link.second} {link.kind}" for link in hardware.gpu_links))
    container = f", in {hardware.container}" if hardware.container else ""
    table.add_row("system", f"Linux {hardware.kernel}, Python {hardware.python}{container}")
    table.add_row("versions", ", ".join(f"{name} {found}" for name, found in hardware.versions.items()))
    return table


def _sampling(sampling: Sampling) -> Table:
    table = _table()
    step, reset = sampling.step_us, sampling.reset_us
    table.add_row(
        "step", f"{step.mean:,.0f} us ({step.median:,.0f} median, {step.p95:,.0f} for 1 of 20, {step.worst:,.0f} worst)"
    )
    if reset is not None:
        episode = "" if sampling.episode_length is None else f", every {sampling.episode_length:,.0f} steps"
        table.add_row("reset", f"{reset.mean:,.0f} us ({reset.median:,.0f} median, {reset.worst:,.0f} worst){episode}")
    actor = ", ".join(f"{one.us:,.1f} us for {one.envs}" for one in sampling.actor)
    table.add_row("actor", actor)
    return table


def _scaling(sampling: Sampling) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    envs = sorted({rate.envs_per_process for rate in sampling.rates})
    table.add_column("env steps/s by samplers")
    for count in envs:
        table.add_column(f"{count} environment{'s' * (count > 1)} each", justify="right")
    rates = {(rate.processes, rate.envs_per_process): rate.env_steps_per_s for rate in sampling.rates}
    for processes in sorted({rate.processes for rate in sampling.rates}):
        cells = (figure(rates[processes, count]) if (processes, count) in rates else "-" for count in envs)
        table.add_row(str(processes), *cells)
    return table


def _transport(transport: Transport) -> Table:
    table = _table()
    table.add_row(
        "replay buffer",
        f"rows of {transport.row_bytes} bytes: append {figure(transport.append_rows_per_s)}/s, draw "
        f"{figure(transport.sample_256_rows_per_s)}/s in batches of 256, "
        f"{figure(transport.sample_8192_rows_per_s)}/s of 8192",
    )
    table.add_row(
        "parameters",
        f"{transport.parameter_bytes / 1024:,.0f} KiB: publish {transport.publish_us:,.0f} us, "
        f"read {transport.copy_us:,.0f} us",
    )
    return table


def _updates(profile: Profile) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("updates")
    for heading in ("batch", "threads", "updates/s", "frames/s", "ready after"):
        table.add_column(heading, justify="right")
    for rate in profile.updates:
        table.add_row(
            f"{rate.device}, {rate.executor}, {rate.precision}{', dense layers by rlz' if rate.dense else ''}",
            *(str(rate.batch_size), str(rate.threads), f"{rate.updates_per_s:,.1f}", figure(rate.frames_per_s)),
            f"{rate.ready_s:.1f} s",
        )
    return table


def _products(profile: Profile) -> Table:
    table = _table()
    if profile.memory:
        rates = ", ".join(f"{one.bytes_per_s / 1e9:,.1f} GB/s with {one.threads}" for one in profile.memory)
        table.add_row("memory", f"copies {rates} thread{'s' * (len(profile.memory) > 1)}")
    for one in profile.products:
        threads = f", {one.threads} thread{'s' * (one.threads > 1)}" if one.device == "cpu" else ""
        library = " by rlz" if one.library == "rlz" else ""
        share = "" if one.of_peak is None else f", {one.of_peak:.2f} of the peak"
        what = f"matrix products{library}, {one.device}, {one.dtype}{threads}"
        table.add_row(what, f"{one.flops / 1e9:,.3g} GFLOP/s{share}")
    for link in profile.copies:
        table.add_row(f"copies, {link.source} to {link.target}", f"{link.bytes_per_s / 1e9:,.1f} GB/s")
    return table


def _joint(profile: Profile) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("samplers x envs", no_wrap=True)
    for heading in ("ratio", "steps/s", "frames/s", "threads", "waits"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for one in profile.joint:
        others = [one.device] if one.device != "cpu" else []
        others += [f"spin {one.spin_count}"] if one.spin_count != DEFAULT_SPIN else []
        others += ["pinned"] if one.pinned else []
        others += ["eager"] if one.executor == "eager" else []
        table.add_row(
            " ".join([f"{one.samplers}x{one.envs_per_sampler}", *others]),
            "free" if one.replay_ratio is None else f"{one.replay_ratio:g}",
            *(figure(one.env_steps_per_s), figure(one.frames_per_s), str(one.threads)),
            f"{one.sampler_waits:.0%}/{one.learner_waits + one.batch_waits:.0%}",
            bound(profile, one),
        )
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table
