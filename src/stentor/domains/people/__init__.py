"""People who sign in with a provider: who they are, what their groups let them do, and their sessions.

The provider itself is in `auth.oidc`. Keys, for machines and for people without a provider, are in `keys`.
"""
