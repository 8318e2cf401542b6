"""The windows other than the main one."""
