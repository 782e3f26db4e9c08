"""Values shared by all tasks: configuration, evaluation, verdict, examples."""
