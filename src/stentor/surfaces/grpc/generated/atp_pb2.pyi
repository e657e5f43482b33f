from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendMessageRequest(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: AtpHeader
    payload: AtpPayload
    def __init__(self, header: _Optional[_Union[AtpHeader, _Mapping]] = ..., payload: _Optional[_Union[AtpPayload, _Mapping]] = ...) -> None: ...

class AtpHeader(_message.Message):
    __slots__ = ("mode", "context", "priority", "action_type", "target_zone", "special_notes", "sender_id")
    MODE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ACTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_ZONE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_NOTES_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    mode: str
    context: str
    priority: str
    action_type: str
    target_zone: str
    special_notes: str
    sender_id: str
    def __init__(self, mode: _Optional[str] = ..., context: _Optional[str] = ..., priority: _Optional[str] = ..., action_type: _Optional[str] = ..., target_zone: _Optional[str] = ..., special_notes: _Optional[str] = ..., sender_id: _Optional[str] = ...) -> None: ...

class AtpPayload(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class SendMessageResponse(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...
