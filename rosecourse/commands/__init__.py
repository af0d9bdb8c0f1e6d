"""The commands: `rosecourse <command>`, each a module with its parser and `main`; nothing here needs torch."""
