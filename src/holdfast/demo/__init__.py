"""The release-notes example: a skill on a real git repository, shipped so that ``holdfast demo`` has something to show."""
