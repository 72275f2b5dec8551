"""Where a run ran: machine, software, state of the code. Facts for the record; nothing here decides a number."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPORTED = ("attnbench", "torch", "xformers", "numpy", "accelerate", "datasets", "numba", "safetensors")


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory (bytes), load before the run, and the GPU when torch is loaded and sees one."""
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_bytes": _ram_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            gpu = torch.cuda.get_device_properties(0)
            facts |= {"gpu": gpu.name, "gpu_bytes": gpu.total_memory, "cuda": torch.version.cuda}
    identity = f"{facts['cpu']} {facts['cores']} {facts['ram_bytes']} {facts.get('gpu')}"
    return {"id": hashlib.sha256(identity.encode()).hexdigest()[:8], **facts}


def describe_software(plugin_packages: tuple[str, ...] = ()) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (*REPORTED, *plugin_packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_code() -> dict[str, Any]:
    """Commit of the checkout attnbench was imported from, and a hash of what differs from it; {} outside a checkout."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return {}
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "diff", "HEAD")
    if commit is None or changes is None:
        return {}
    untracked = _git(folder, "ls-files", "--others", "--exclude-standard", "--", "*.py") or ""
    dirty = bool(changes or untracked)
    digest = hashlib.sha256((changes + untracked).encode()).hexdigest()[:12] if dirty else None
    return {"commit": commit.strip(), "dirty": dirty, "diff_sha": digest}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
