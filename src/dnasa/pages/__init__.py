"""Run folders as a page for a browser: one file that needs no network, or served while a run is under way."""

from dnasa.pages.contents import Folders
from dnasa.pages.page import render
from dnasa.pages.server import Server

__all__ = ["Folders", "Server", "render"]
