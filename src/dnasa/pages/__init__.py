"""Run folders as a page for a browser: one file that needs no network."""

from dnasa.pages.contents import read
from dnasa.pages.page import render

__all__ = ["read", "render"]
