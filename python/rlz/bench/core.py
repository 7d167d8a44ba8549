"""Measures the Rust core alone, without Python: `rust/core/examples/transport_speed.rs`, run by cargo in a checkout."""

from pathlib import Path

from rlz.bench.children import run_child
from rlz.bench.result import Job, Outcome
from rlz.errors import RlzError

BUILD_LIMIT_S = 900.0


def core_job(workload: str, seconds: float) -> Job:
    """The job of a workload ("replay" or "transport"); `seconds` for each of its measurements. Builds on first use."""
    manifest = Path(__file__).resolve().parents[3] / "Cargo.toml"

    def run(_: int) -> Outcome:
        if not manifest.exists():
            raise RlzError("it is measured in a checkout of rlz, with cargo")
        command = ["cargo", "run", "--release", "--quiet", "--manifest-path", str(manifest)]
        command += ["--package", "rlz-core", "--example", "transport_speed", "--", workload, str(seconds)]
        return Outcome(run_child(command, timeout=BUILD_LIMIT_S))

    return Job("core", run)
