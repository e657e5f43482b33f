"""API keys made at runtime: limited, shown once, rotated and revoked without a restart.

Keys of the environment are in `auth.api_keys`; both are found through its `KeyRing`.
"""
