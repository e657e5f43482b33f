import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]
    PRIORITY_CRITICAL: _ClassVar[Priority]

class Prefer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFER_UNSPECIFIED: _ClassVar[Prefer]
    PREFER_QUALITY: _ClassVar[Prefer]
    PREFER_BALANCED: _ClassVar[Prefer]
    PREFER_FAST: _ClassVar[Prefer]
    PREFER_CHEAP: _ClassVar[Prefer]

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_UNSPECIFIED: _ClassVar[TaskStatus]
    TASK_STATUS_QUEUED: _ClassVar[TaskStatus]
    TASK_STATUS_PENDING_APPROVAL: _ClassVar[TaskStatus]
    TASK_STATUS_EXECUTING: _ClassVar[TaskStatus]
    TASK_STATUS_COMPLETED: _ClassVar[TaskStatus]
    TASK_STATUS_FAILED: _ClassVar[TaskStatus]
    TASK_STATUS_ABORTED: _ClassVar[TaskStatus]
    TASK_STATUS_CANCELLED: _ClassVar[TaskStatus]
    TASK_STATUS_WAITING: _ClassVar[TaskStatus]

class OutcomeClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_CLASS_UNSPECIFIED: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_SUCCESS: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_DEGRADED_SUCCESS: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_AGENT_FAILURE: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_PROVIDER_FAILURE: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_TIMEOUT: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_CANCELLED: _ClassVar[OutcomeClass]
    OUTCOME_CLASS_ROUTING_FAILED: _ClassVar[OutcomeClass]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
PRIORITY_CRITICAL: Priority
PREFER_UNSPECIFIED: Prefer
PREFER_QUALITY: Prefer
PREFER_BALANCED: Prefer
PREFER_FAST: Prefer
PREFER_CHEAP: Prefer
TASK_STATUS_UNSPECIFIED: TaskStatus
TASK_STATUS_QUEUED: TaskStatus
TASK_STATUS_PENDING_APPROVAL: TaskStatus
TASK_STATUS_EXECUTING: TaskStatus
TASK_STATUS_COMPLETED: TaskStatus
TASK_STATUS_FAILED: TaskStatus
TASK_STATUS_ABORTED: TaskStatus
TASK_STATUS_CANCELLED: TaskStatus
TASK_STATUS_WAITING: TaskStatus
OUTCOME_CLASS_UNSPECIFIED: OutcomeClass
OUTCOME_CLASS_SUCCESS: OutcomeClass
OUTCOME_CLASS_DEGRADED_SUCCESS: OutcomeClass
OUTCOME_CLASS_AGENT_FAILURE: OutcomeClass
OUTCOME_CLASS_PROVIDER_FAILURE: OutcomeClass
OUTCOME_CLASS_TIMEOUT: OutcomeClass
OUTCOME_CLASS_CANCELLED: OutcomeClass
OUTCOME_CLASS_ROUTING_FAILED: OutcomeClass

class SubmitTaskRequest(_message.Message):
    __slots__ = ("id", "type", "input_json", "required_capabilities", "timeout_seconds", "agent_preference", "metadata", "queue_timeout_seconds", "title", "start_at", "after", "limit", "session", "deadline", "max_cost_usd")
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGENT_PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    START_AT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_USD_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: str
    input_json: str
    required_capabilities: _containers.RepeatedScalarFieldContainer[str]
    timeout_seconds: int
    agent_preference: str
    metadata: TaskMetadata
    queue_timeout_seconds: int
    title: str
    start_at: _timestamp_pb2.Timestamp
    after: _containers.RepeatedScalarFieldContainer[str]
    limit: TaskLimit
    session: str
    deadline: _timestamp_pb2.Timestamp
    max_cost_usd: float
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., input_json: _Optional[str] = ..., required_capabilities: _Optional[_Iterable[str]] = ..., timeout_seconds: _Optional[int] = ..., agent_preference: _Optional[str] = ..., metadata: _Optional[_Union[TaskMetadata, _Mapping]] = ..., queue_timeout_seconds: _Optional[int] = ..., title: _Optional[str] = ..., start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., after: _Optional[_Iterable[str]] = ..., limit: _Optional[_Union[TaskLimit, _Mapping]] = ..., session: _Optional[str] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_cost_usd: _Optional[float] = ...) -> None: ...

class TaskLimit(_message.Message):
    __slots__ = ("key", "max", "per_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    PER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    max: int
    per_seconds: int
    def __init__(self, key: _Optional[str] = ..., max: _Optional[int] = ..., per_seconds: _Optional[int] = ...) -> None: ...

class TaskMetadata(_message.Message):
    __slots__ = ("user_id", "priority", "retry_count", "tags", "parent_task_id", "grant_id", "prefer")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    priority: Priority
    retry_count: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    parent_task_id: str
    grant_id: str
    prefer: Prefer
    def __init__(self, user_id: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., retry_count: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., parent_task_id: _Optional[str] = ..., grant_id: _Optional[str] = ..., prefer: _Optional[_Union[Prefer, str]] = ...) -> None: ...

class SubmitTaskResponse(_message.Message):
    __slots__ = ("task_id", "status", "estimated_start", "estimated_completion", "notice", "provenance_id", "notice_code")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_START_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_COMPLETION_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_ID_FIELD_NUMBER: _ClassVar[int]
    NOTICE_CODE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    status: TaskStatus
    estimated_start: _timestamp_pb2.Timestamp
    estimated_completion: _timestamp_pb2.Timestamp
    notice: str
    provenance_id: str
    notice_code: str
    def __init__(self, task_id: _Optional[str] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., estimated_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., estimated_completion: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., notice: _Optional[str] = ..., provenance_id: _Optional[str] = ..., notice_code: _Optional[str] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "type", "status", "assigned_agent", "created_at", "start_time", "completion_time", "duration_ms", "result_json", "error_json", "timeout_seconds", "required_capabilities", "agent_preference", "metadata", "attempts", "outcome_class", "learning_eligible", "provenance_id", "queue_timeout_seconds", "notice", "title", "total_duration_ms", "notice_code", "deadline")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_AGENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TIME_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    AGENT_PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_CLASS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_CODE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    type: str
    status: TaskStatus
    assigned_agent: str
    created_at: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    completion_time: _timestamp_pb2.Timestamp
    duration_ms: int
    result_json: str
    error_json: str
    timeout_seconds: int
    required_capabilities: _containers.RepeatedScalarFieldContainer[str]
    agent_preference: str
    metadata: TaskMetadata
    attempts: int
    outcome_class: OutcomeClass
    learning_eligible: bool
    provenance_id: str
    queue_timeout_seconds: int
    notice: str
    title: str
    total_duration_ms: int
    notice_code: str
    deadline: _timestamp_pb2.Timestamp
    def __init__(self, task_id: _Optional[str] = ..., type: _Optional[str] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., assigned_agent: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completion_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration_ms: _Optional[int] = ..., result_json: _Optional[str] = ..., error_json: _Optional[str] = ..., timeout_seconds: _Optional[int] = ..., required_capabilities: _Optional[_Iterable[str]] = ..., agent_preference: _Optional[str] = ..., metadata: _Optional[_Union[TaskMetadata, _Mapping]] = ..., attempts: _Optional[int] = ..., outcome_class: _Optional[_Union[OutcomeClass, str]] = ..., learning_eligible: _Optional[bool] = ..., provenance_id: _Optional[str] = ..., queue_timeout_seconds: _Optional[int] = ..., notice: _Optional[str] = ..., title: _Optional[str] = ..., total_duration_ms: _Optional[int] = ..., notice_code: _Optional[str] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CancelTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class CancelTaskResponse(_message.Message):
    __slots__ = ("task_id", "cancelled_at")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_AT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    cancelled_at: _timestamp_pb2.Timestamp
    def __init__(self, task_id: _Optional[str] = ..., cancelled_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchTaskRequest(_message.Message):
    __slots__ = ("task_id", "last_event_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    last_event_id: str
    def __init__(self, task_id: _Optional[str] = ..., last_event_id: _Optional[str] = ...) -> None: ...

class WatchTaskResponse(_message.Message):
    __slots__ = ("id", "routing", "activity", "token", "completed", "ended")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    id: str
    routing: RoutingDecided
    activity: Activity
    token: Token
    completed: TaskCompleted
    ended: TaskEnded
    def __init__(self, id: _Optional[str] = ..., routing: _Optional[_Union[RoutingDecided, _Mapping]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., completed: _Optional[_Union[TaskCompleted, _Mapping]] = ..., ended: _Optional[_Union[TaskEnded, _Mapping]] = ...) -> None: ...

class RoutingDecided(_message.Message):
    __slots__ = ("agent_name", "decision_json", "provenance_id")
    AGENT_NAME_FIELD_NUMBER: _ClassVar[int]
    DECISION_JSON_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_ID_FIELD_NUMBER: _ClassVar[int]
    agent_name: str
    decision_json: str
    provenance_id: str
    def __init__(self, agent_name: _Optional[str] = ..., decision_json: _Optional[str] = ..., provenance_id: _Optional[str] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("event_id", "timestamp", "event_type", "component", "message", "metadata_json", "duration_ms", "parent_provenance_id")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    PARENT_PROVENANCE_ID_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    timestamp: _timestamp_pb2.Timestamp
    event_type: str
    component: str
    message: str
    metadata_json: str
    duration_ms: int
    parent_provenance_id: str
    def __init__(self, event_id: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., event_type: _Optional[str] = ..., component: _Optional[str] = ..., message: _Optional[str] = ..., metadata_json: _Optional[str] = ..., duration_ms: _Optional[int] = ..., parent_provenance_id: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class TaskCompleted(_message.Message):
    __slots__ = ("result_json", "agent_name", "provenance_id", "outcome_class", "learning_eligible", "duration_ms", "learning_error")
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    AGENT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_CLASS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_ERROR_FIELD_NUMBER: _ClassVar[int]
    result_json: str
    agent_name: str
    provenance_id: str
    outcome_class: OutcomeClass
    learning_eligible: bool
    duration_ms: int
    learning_error: str
    def __init__(self, result_json: _Optional[str] = ..., agent_name: _Optional[str] = ..., provenance_id: _Optional[str] = ..., outcome_class: _Optional[_Union[OutcomeClass, str]] = ..., learning_eligible: _Optional[bool] = ..., duration_ms: _Optional[int] = ..., learning_error: _Optional[str] = ...) -> None: ...

class TaskEnded(_message.Message):
    __slots__ = ("status", "code", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: TaskStatus
    code: str
    message: str
    def __init__(self, status: _Optional[_Union[TaskStatus, str]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GradeTaskRequest(_message.Message):
    __slots__ = ("task_id", "grade", "comment")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    grade: float
    comment: str
    def __init__(self, task_id: _Optional[str] = ..., grade: _Optional[float] = ..., comment: _Optional[str] = ...) -> None: ...

class GetGradeRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class Grade(_message.Message):
    __slots__ = ("task_id", "agent_id", "grade", "comment", "graded_by", "graded_at", "learned")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    GRADED_BY_FIELD_NUMBER: _ClassVar[int]
    GRADED_AT_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    agent_id: str
    grade: float
    comment: str
    graded_by: str
    graded_at: _timestamp_pb2.Timestamp
    learned: bool
    def __init__(self, task_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., grade: _Optional[float] = ..., comment: _Optional[str] = ..., graded_by: _Optional[str] = ..., graded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., learned: _Optional[bool] = ...) -> None: ...
