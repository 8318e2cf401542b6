"""Cards: the titled parts of pages."""
