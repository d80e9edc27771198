"""Run folders as a page for a browser: one file that needs no network."""

from dnasa.pages.contents import read
from dnasa.pages.page import files_of_report, render

__all__ = ["files_of_report", "read", "render"]
