"""Witnesses (C2SP tlog-witness): they sign a checkpoint only when it extends all that they have seen of the log.

`wire` is the request format, `client` requests cosignatures for this log, `witness` is a witness for other logs, which
`surfaces/witness.py` serves.
"""
