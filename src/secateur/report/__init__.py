"""What users see of runs and results: the terminal, the report page, tables, TensorBoard."""
