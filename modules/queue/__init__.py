"""The queue of training runs: plain files, a process that starts what is due, and one process for each run."""
