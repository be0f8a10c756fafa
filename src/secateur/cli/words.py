"""What the words of a command that trains say before they are parsed: which flags there are depends on it."""

from __future__ import annotations

from dataclasses import replace

from secateur import networks
from secateur.budget import Budget
from secateur.experiments.presets import default_preset, has_preset, preset, preset_names
from secateur.job import Job
from secateur.methods import METHODS, first_methods, method_for
from secateur.nearest import require_one_of


def likely_network(words: list[str]) -> str | None:
    """Return the first word that may be the network, if there is one: a flag may have such a value, too."""
    ours = (word for word in words if word in networks.NETWORKS)
    others = (word for word in words if networks.is_import_path(word) and word != _value(words, "--data"))
    return next(ours, None) or next(others, None)


def job_in(words: list[str], network: str | None) -> Job:
    """Return the job that the preset and the method among the words describe for a network, or for some network."""
    preset_name, method_name = _value(words, "--preset") or default_preset(network), _value(words, "--method")
    require_one_of("preset", preset_name, preset_names())
    if method_name is not None:
        require_one_of("method", method_name, first_methods())
    budget = _budget(words)
    if budget is not None and method_name is None:
        method_name = method_for(budget).name
    some = next((name for name in networks.NETWORKS if has_preset(preset_name, name)), next(iter(networks.NETWORKS)))
    job = preset(preset_name, network or some, to_file=True)
    if method_name is not None and METHODS[method_name] is not type(job.methods[0]):
        job = job.with_method(METHODS[method_name]())
    if budget is not None:
        job = replace(job, methods=(job.methods[0].with_budget(budget), *job.methods[1:]))
    return job


def _budget(words: list[str]) -> Budget | None:
    """Return the budget among the words, if there is one: it takes the place of the preset's, whatever that is in.

    A value that is no number is left to the parser, and so is a second budget.
    """
    for name, kind in (("ratio", float), ("sparsity", float), ("bytes", int), ("error_increase", float)):
        value = _value(words, f"--{name.replace('_', '-')}")
        if value is not None:
            try:
                number = kind(value)
            except ValueError:
                return Budget(ratio=2)  # any one: the parser refuses the value
            return Budget(**{name: number})  # type: ignore[arg-type]  # bytes are an int
    return None


def _value(words: list[str], flag: str) -> str | None:
    """Return the value of a flag that decides which further flags there are."""
    for index, word in enumerate(words):
        if word == flag:
            return next(iter(words[index + 1 :]), None)
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None
