"""Reasons of skips, of which the gate excuses some by their text."""


def not_installed(package):
    """Return the reason of a test that needs a package of the registry."""
    return f'{package} is not installed: pip install "{package}"'
