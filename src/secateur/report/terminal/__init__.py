"""What the command line prints: progress while a run trains, and tables when it is done."""

from secateur.report.terminal.lines import say
from secateur.report.terminal.progress import Watcher, epoch_line
from secateur.report.terminal.summary import print_layers, print_outcome, summary_table

__all__ = ["Watcher", "epoch_line", "print_layers", "print_outcome", "say", "summary_table"]
