"""What an application may set: plain data behind one holder; the one reader of the environment."""

from nbxtensor.settings.holder import Settings, replace, settings
from nbxtensor.settings.locations import cache_directory, set_cache_directory

__all__ = ["Settings", "cache_directory", "replace", "set_cache_directory", "settings"]
