"""Model families: the architectures that Chorus can train."""
