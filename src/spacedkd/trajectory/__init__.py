"""A teacher's trajectory: its weights after each update, recorded once and replayed by any number of students."""
