"""What every task shares: the configuration, the evaluation, its verdict, what is shown."""
