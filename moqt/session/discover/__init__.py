"""Who has what: namespaces and tracks."""
