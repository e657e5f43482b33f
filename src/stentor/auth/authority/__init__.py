"""The credential-free authority boundary: verifies signed receipts and returns authority contexts.

Code behind the boundary never sees a key, a receipt or a proof. Source: core contract, "Authentication" 9.
"""
