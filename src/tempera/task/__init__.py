"""Values that every task shares: configuration, evaluation, verdict, examples."""
