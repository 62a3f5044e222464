"""Agent frameworks on Holdfast. Each module needs the extra of its name and is imported by name only."""
