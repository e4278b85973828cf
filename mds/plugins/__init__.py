"""What installed packages bring, by entry points."""

from mds.plugins.installed import load_plugin, plugin_names

__all__ = ["load_plugin", "plugin_names"]
