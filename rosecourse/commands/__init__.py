"""The commands: `rosecourse <command>`, a module for each. None imports torch before its flags have been looked at."""
