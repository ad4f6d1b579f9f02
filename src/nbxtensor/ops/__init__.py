"""Op families, one folder each, and the settings they are steered by."""
