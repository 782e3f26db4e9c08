"""Options: YAML, the forms of a source, names, checks, and the parts of a configuration."""
