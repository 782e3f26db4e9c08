"""Forms of data: the roles of columns and the files of a folder, for texts and for interactions."""
