"""The searches of the vault server: the index of texts and links, and JsonLogic rules."""
