"""Studies behind the paper's tables and figures and our comparisons: runs over seeds, and their summaries."""
