"""The credential-free authority boundary: signed receipts in, an authority context out.

Nothing behind the boundary sees a key, a receipt or a proof. Source: core contract, "Authentication" 9.
"""
