"""The software and the machine that a number was produced with."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def versions() -> dict[str, str]:
    """Name the versions of the packages, and the machine."""
    return {
        "secateur": package_version("secateur"),
        "torch": str(torch.__version__),  # names the build, which the installed version may not
        "accelerate": package_version("accelerate"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def package_version(package: str) -> str:
    """Return the version of an installed package; "not installed" when it is imported from a source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
