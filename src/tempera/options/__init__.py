"""Options: YAML, the forms of a source, names, checks, and the objects that are built of them."""
