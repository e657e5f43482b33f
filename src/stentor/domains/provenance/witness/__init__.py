"""Witnesses (C2SP tlog-witness): they sign a checkpoint only when it extends all that they have seen of the log.

`wire.py` is the request, `client.py` asks witnesses for this log, `witness.py` is one for other logs, with its state in
`folder.py`; `surfaces/witness.py` serves it.
"""
