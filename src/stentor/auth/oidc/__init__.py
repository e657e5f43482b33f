"""Sign-in with an OpenID Connect provider: its addresses and keys are in `provider`, the check of ID tokens in
`id_token`.

Who the signed-in people are, and what they may do, is in the domain `people`.
"""
