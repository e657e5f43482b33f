"""Messages as hypothesis makes them."""

from __future__ import annotations

from hypothesis import strategies as st

from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES, AtpHeader, AtpMessage

TAGS = ("#Mode", "#Context", "#Priority", "#ActionType", "#TargetZone", "#SpecialNotes")
BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
HOSTILE = [*BREAKS, "\0", "\ufeff", "\u202e", "\ud800", "\t"]

letters = st.characters(codec="utf-8").filter(str.isprintable)


def line(most: int) -> st.SearchStrategy[str]:
    """What a value of a header may be, tags and colons among it."""
    parts = st.lists(st.one_of(st.text(letters, max_size=8), st.sampled_from((*TAGS, ": ", "#"))), max_size=8)
    return parts.map(lambda found: "".join(found)[:most].strip(" ")).filter(bool)


bodies = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    st.sampled_from(TAGS).map(lambda tag: f"\n\n{tag}: critical\n\n"),
)
messages = st.builds(
    AtpMessage,
    st.builds(
        AtpHeader,
        st.sampled_from(MODES),
        line(64),
        st.sampled_from(PRIORITIES),
        st.sampled_from(ACTION_TYPES),
        st.sampled_from(ZONES),
        st.none() | line(256),
    ),
    bodies,
)
