"""Tables from files and objects in memory: their forms, columns and values."""
