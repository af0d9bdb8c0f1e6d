"""The commands: `rosecourse <command>`. None imports torch before its flags have been looked at."""
