"""The commands: `rosecourse <command>`, each a module with its parser and `main`, which need nothing to be installed."""
