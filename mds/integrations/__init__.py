"""Datasets of mds inside the trainers and engines of others, one module for each.

A module imports its library, so import it by name: ``import mds.integrations.grain``.
"""

__all__: list[str] = []
