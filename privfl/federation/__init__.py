"""Who learns what with whom: the task, who can be reached, who takes part."""
