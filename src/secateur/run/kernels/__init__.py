"""Sparse layers as the native library runs them: how weights are packed, images divided, and the calls themselves."""
