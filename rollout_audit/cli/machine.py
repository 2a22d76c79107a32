"""What the machine has: asked by `doctor`."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rollout_audit.reports.machine import Fact

__all__ = ["examine"]

PACKAGES = (
    "rollout-audit",
    "torch",
    "numpy",
    "pyarrow",
    "polars",
    "safetensors",
    "matplotlib",
    "pydantic",
    "rich",
    "typer",
)


def examine() -> list[Fact]:
    """Facts about the machine, each with a verdict."""
    return [*_versions(), *_devices(), *_folders()]


def _versions() -> Iterator[Fact]:
    yield Fact("python", platform.python_version(), "ok")
    yield Fact("platform", platform.platform(), "ok")
    for name in PACKAGES:
        try:
            yield Fact(name, version(name), "ok")
        except PackageNotFoundError:
            yield Fact(name, "not installed", "error")


def _devices() -> Iterator[Fact]:
    import torch

    from rollout_audit.dumps.formats.table import FORMATS
    from rollout_audit.engines.threads import default_workers

    cuda = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    yield Fact("CUDA", ", ".join(cuda) or "none: the CPU does the arithmetic", "ok")
    yield Fact("workers", f"{default_workers()} by default", "ok")
    yield Fact("formats", ", ".join(FORMATS), "ok")


def _folders() -> Iterator[Fact]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Fact("temporary folder", f"{folder} is writable", "ok")
    except OSError as error:
        yield Fact("temporary folder", f"not writable ({error})", "error")
