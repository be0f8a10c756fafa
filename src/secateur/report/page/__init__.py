"""The report page of a run, or of several side by side: one HTML file that needs no other file and no internet."""

from secateur.report.page.render import render_page, write_page

__all__ = ["render_page", "write_page"]
