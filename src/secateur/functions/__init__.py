"""The weight functions, one per file: what a layer can read in place of its stored weight."""
