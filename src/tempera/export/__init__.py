"""What a run leaves behind: model, index, report; written atomically."""
