"""Machines of different owners that train together: their keys, the file that lists them, and TLS between them."""
