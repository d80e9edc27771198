"""Running rules: `solve`'s loop, and the steppers that take a rule's steps."""

from dnasa.engine.loop import solve

__all__ = ["solve"]
