"""Text for people: safe to print, without secrets."""
