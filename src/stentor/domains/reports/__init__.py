"""Reports: notes in the vault's folder `Reports` that tell of work that was done."""
