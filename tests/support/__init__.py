"""What several test files build on."""
