"""A vault of notes behind Obsidian's vault plugin. Vaults in a folder are in the distribution `stentor-vault`."""
