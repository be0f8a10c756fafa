"""What users read for the forms of a network that are evaluated on the way to its file."""

_WORDS = {
    "dense": "dense network",
    "sibling": "sibling, before the cut",
    "theta": "cut, kept weights at θ(w)",
    "raw": "cut, kept weights at their raw values (the paper's form)",
    "pruned": "pruned network",
    "shared": "few values per layer",
    "joint": "few values per layer, learned with the thresholds",
    "file": "read back from the file",
}


def in_words(form: str) -> str:
    """Return a form in words; one that this version does not know by its own name."""
    return _WORDS.get(form, form)
