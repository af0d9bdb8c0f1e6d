"""Pictures, drawn from the running engine and from measurements."""
