"""Reports: notes in the vault's folder `Reports` that name the task they are about. Only read, never written, here."""
