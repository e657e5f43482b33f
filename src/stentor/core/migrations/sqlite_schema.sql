CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE agents (
    agent_id text primary key,
    tenant text not null,
    name text not null,
    capabilities text not null,
    alignment_score double precision not null check (alignment_score between 0 and 1),
    accuracy_score double precision not null check (accuracy_score between 0 and 1),
    efficiency_score double precision not null check (efficiency_score between 0 and 1),
    trust_tier text not null check (trust_tier = 'auto' or trust_tier = 'monitored' or trust_tier = 'human'),
    status text not null check (status = 'active' or status = 'suspended' or status = 'quarantined'),
    runtime text not null,
    sandbox_whitelist text not null,
    key_name text,
    violation_count integer not null check (violation_count >= 0),
    status_reason text,
    created_at bigint not null,
    updated_at bigint not null
, archived_at bigint, archived_from text);
CREATE INDEX agents_by_tenant on agents (tenant, created_at, agent_id);
CREATE INDEX agents_by_change on agents (updated_at);
CREATE TABLE violations (
    violation_id text primary key,
    agent_id text not null references agents (agent_id),
    type text not null,
    details text not null,
    happened_at bigint not null,
    cleared_at bigint
);
CREATE INDEX violations_by_agent on violations (agent_id, happened_at);
CREATE TABLE rate_buckets (
    agent_id text not null,
    tool text not null,
    tokens double precision not null,
    updated_at bigint not null,
    primary key (agent_id, tool)
);
CREATE TABLE task_counts (
    tenant text not null,
    hour bigint not null, -- -1 counts all hours
    status text not null,
    agent_id text not null,
    n bigint not null,
    primary key (tenant, hour, status, agent_id)
);
CREATE TABLE idempotency_keys (
    tenant text not null,
    key_name text not null,
    route text not null,
    idempotency_key text not null,
    body_hash text not null,
    status_code integer not null,
    answer text not null,
    created_at bigint not null,
    primary key (tenant, key_name, route, idempotency_key)
);
CREATE INDEX idempotency_by_age on idempotency_keys (created_at);
CREATE TABLE events (
    event_id text primary key,
    tenant text not null,
    task_id text,
    agent_id text,
    parent_id text,
    happened_at bigint not null,
    event_type text not null,
    component text not null,
    message text not null,
    duration_ms bigint,
    metadata text not null
);
CREATE INDEX events_by_task on events (tenant, task_id, event_id) where task_id is not null;
CREATE INDEX events_by_agent on events (tenant, agent_id, event_id) where agent_id is not null;
CREATE TABLE hebbian_weights (
    agent_id text not null,
    task_type text not null,
    weight double precision not null check (weight >= 0.01),
    mean_ms double precision not null,
    samples integer not null,
    recent text not null,
    updated_at bigint not null, rewards text not null default '', tick bigint not null default 0, since_change integer not null default -1, changed_tick bigint not null default 0, mean_cost double precision, loads text not null default '', lengths text not null default '',
    primary key (agent_id, task_type)
);
CREATE INDEX hebbian_weights_by_change on hebbian_weights (updated_at);
CREATE TABLE hebbian_history (
    entry_id text primary key,
    agent_id text not null,
    task_type text not null,
    tenant text not null,
    task_id text not null,
    epoch integer not null,
    delta integer not null check (delta in (-1, 1)),
    result text not null,
    weight_before double precision not null,
    weight_after double precision not null,
    happened_at bigint not null
, sample integer);
CREATE UNIQUE INDEX hebbian_once_per_attempt on hebbian_history (tenant, task_id, epoch);
CREATE INDEX hebbian_history_by_agent on hebbian_history (agent_id, entry_id);
CREATE TABLE hebbian_connections (
    tenant text not null,
    low text not null,
    high text not null,
    agent1 text not null,
    agent2 text not null,
    weight double precision not null check (weight >= 0.01),
    updated_at bigint not null,
    primary key (tenant, low, high),
    check (low < high)
);
CREATE TABLE sentinel_alerts (
    alert_id text primary key,
    agent_id text not null,
    task_type text not null,
    rate double precision not null,
    threshold double precision not null,
    samples integer not null,
    opened_at bigint not null,
    resolved_at bigint
);
CREATE UNIQUE INDEX sentinel_one_open_alert on sentinel_alerts (agent_id, task_type)
    where resolved_at is null;
CREATE TABLE trust_scores (
    tenant text not null,
    entity_id text not null,
    entity_type text not null,
    score double precision not null check (score between 0 and 1),
    updated_at bigint not null,
    primary key (tenant, entity_id)
);
CREATE INDEX trust_by_change on trust_scores (updated_at);
CREATE TABLE trust_changes (
    change_id text primary key,
    tenant text not null,
    entity_id text not null,
    kind text not null check (kind = 'set' or kind = 'success' or kind = 'failure'),
    delta double precision not null,
    score double precision not null,
    cause text,
    happened_at bigint not null
);
CREATE INDEX trust_changes_by_time on trust_changes (tenant, change_id);
CREATE UNIQUE INDEX trust_once_per_cause on trust_changes (tenant, entity_id, cause)
    where cause is not null
;
CREATE TABLE memory_versions (
    path text not null,
    content_hash text not null,
    content blob not null,
    size bigint not null,
    origin text not null check (origin in ('bus', 'vault')),
    created_at bigint not null, name text, provisional integer not null default 0, cause text check (cause = 'found' or cause = 'edited' or cause = 'written' or cause = 'restored'), first_at bigint,
    primary key (path, content_hash)
);
CREATE INDEX memory_versions_by_time on memory_versions (path, created_at);
CREATE TABLE memory_intents (
    write_id text primary key,
    path text not null,
    before_hash text not null,
    after_hash text not null,
    created_at bigint not null
);
CREATE TABLE authority_uses (
    use_hash text primary key,
    expires_at bigint not null
);
CREATE INDEX authority_uses_by_end on authority_uses (expires_at)
;
CREATE TABLE memory_records (
            path text primary key,
            version bigint not null check (version >= 1),
            raw_hash text not null
        );
CREATE TABLE task_note_cursors (
    writer_id text primary key,
    event_id text not null,
    seen_at bigint not null
);
CREATE TABLE inbox_notes (
    tenant text not null,
    path text not null,
    content_hash text not null,
    modified_at bigint not null,
    attempt integer not null check (attempt >= 0),
    task_id text,
    problem text,
    state text not null check (state = 'asked' or state = 'answered' or state = 'refused'),
    answer_path text,
    answer_hash text,
    updated_at bigint not null,
    primary key (tenant, path)
);
CREATE INDEX inbox_open on inbox_notes (tenant, path) where state = 'asked'
;
CREATE TABLE atp_messages (
    tenant text not null,
    message_id text not null,
    status text not null check (status = 'queued' or status = 'executing' or status = 'completed' or status = 'failed'),
    priority integer not null check (priority between 0 and 3),
    header text not null,
    content text not null,
    sender_id text not null,
    sender_agent text,
    principal text not null,
    created_at bigint not null,
    updated_at bigint not null,
    due_at bigint not null,
    epoch integer not null check (epoch >= 0),
    lease_until bigint,
    deadline_at bigint,
    task_id text,
    route text,
    response text,
    provenance_id text not null,
    head_id text not null,
    primary key (tenant, message_id),
    check (status = 'executing' or lease_until is null),
    check (status <> 'executing' or ((lease_until is null) = (task_id is not null) and epoch > 0)),
    check (status not in ('completed', 'failed') or response is not null)
);
CREATE INDEX atp_messages_queued on atp_messages (priority, created_at, message_id) where status = 'queued';
CREATE INDEX atp_messages_of_tenant on atp_messages (tenant, created_at, message_id) where status = 'queued';
CREATE INDEX atp_messages_executing on atp_messages (tenant, task_id) where status = 'executing';
CREATE INDEX atp_messages_leased on atp_messages (lease_until) where status = 'executing' and lease_until is not null;
CREATE INDEX atp_messages_limited on atp_messages (deadline_at) where status = 'executing' and deadline_at is not null;
CREATE INDEX memory_written_for on events (parent_id) where event_type = 'memory_written'
;
CREATE TABLE llm_providers (
    tenant text not null,
    name text not null,
    format text not null check (format = 'openai' or format = 'anthropic' or format = 'gemini'),
    base_url text not null,
    sealed_key text,
    default_model text not null,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (tenant, name)
);
CREATE TABLE llm_calls (
    call_id text primary key,
    tenant text not null,
    key_name text not null,
    agent_id text,
    task_id text,
    operation text not null check (operation in ('chat', 'embed')),
    provider text not null,
    model text not null,
    outcome text not null,
    input_tokens bigint not null check (input_tokens >= 0),
    output_tokens bigint not null check (output_tokens >= 0),
    estimated integer not null check (estimated in (0, 1)),
    cost bigint check (cost >= 0),
    latency_ms bigint not null,
    happened_at bigint not null
, cached_tokens bigint not null default 0 check (cached_tokens >= 0), team text not null default '');
CREATE INDEX llm_calls_by_time on llm_calls (tenant, happened_at);
CREATE TABLE events_waiting (
    event_id text primary key,
    leaf text
) without rowid;
CREATE TABLE provenance_leaves (
    number integer primary key check (number >= 0),
    event_id text not null unique,
    hash text not null
);
CREATE TABLE provenance_tiles (
    level integer not null check (level >= 0),
    position bigint not null check (position >= 0),
    hashes blob not null,
    primary key (level, position)
);
CREATE TABLE provenance_checkpoints (
    size bigint primary key check (size >= 0),
    root text not null,
    note text not null,
    made_at bigint not null
);
CREATE INDEX events_led_to on events (parent_id)
    where parent_id is not null and (task_id is null or event_type = 'prompt_received');
CREATE TABLE webhook_subscriptions (
    subscription_id text primary key,
    tenant text not null,
    url text not null,
    events text not null,
    description text not null,
    enabled integer not null check (enabled in (0, 1)),
    disabled_reason text,
    sealed_secret text not null,
    old_secret text,
    old_until bigint,
    hold_until bigint not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    check ((old_secret is null) = (old_until is null)),
    check (enabled = 0 or disabled_reason is null)
);
CREATE INDEX webhook_subscriptions_of_tenant on webhook_subscriptions (tenant, subscription_id);
CREATE TABLE webhook_deliveries (
    delivery_id text primary key,
    tenant text not null,
    subscription_id text not null,
    event_id text not null,
    event text not null,
    subject text not null,
    status text not null check (status = 'waiting' or status = 'sending' or status = 'delivered' or status = 'failed'),
    attempts integer not null check (attempts >= 0),
    epoch integer not null check (epoch >= 0),
    created_at bigint not null,
    due_at bigint not null,
    lease_until bigint,
    ended_at bigint,
    last_status integer,
    last_error text,
    replay_of text,
    check ((status = 'sending') = (lease_until is not null)),
    check ((status in ('delivered', 'failed')) = (ended_at is not null)),
    check (status in ('waiting', 'sending') or attempts > 0)
);
CREATE INDEX webhook_deliveries_due on webhook_deliveries (subscription_id, due_at, delivery_id)
    where status = 'waiting';
CREATE INDEX webhook_deliveries_in_order on webhook_deliveries (subscription_id, subject, delivery_id)
    where status in ('waiting', 'sending');
CREATE INDEX webhook_deliveries_leased on webhook_deliveries (lease_until) where status = 'sending';
CREATE INDEX webhook_deliveries_log on webhook_deliveries (subscription_id, delivery_id);
CREATE INDEX webhook_deliveries_of_event on webhook_deliveries (subscription_id, event_id);
CREATE TABLE webhook_attempts (
    delivery_id text not null,
    attempt integer not null check (attempt > 0),
    started_at bigint not null,
    duration_ms bigint not null,
    status_code integer,
    error text,
    response text,
    primary key (delivery_id, attempt),
    check (status_code is not null or error is not null)
);
CREATE TABLE governance_updates (
    tenant text not null,
    update_id text not null,
    agent_id text not null,
    status text not null check (status = 'submitted' or status = 'approved' or status = 'rejected' or status = 'deploying' or status = 'deployed' or status = 'rolled_back'),
    tier integer not null check (tier between 1 and 3),
    patched integer not null check (patched in (0, 1)),
    update_type text not null,
    description text not null,
    changes text not null,
    named_checkpoint text,
    proposed_by text not null,
    body_hash text not null,
    submitted_status text not null check (submitted_status = 'submitted' or submitted_status = 'approved' or submitted_status = 'rejected'),
    basis text not null,
    base_hash text,
    submitted_at bigint not null,
    approval_deadline bigint not null,
    decided_by text,
    decision text,
    approved_at bigint,
    rejected_at bigint,
    deployed_at bigint,
    rolled_back_at bigint,
    checkpoint_id text,
    test_results text,
    notes text,
    provenance_id text not null,
    head_id text not null,
    updated_at bigint not null,
    primary key (tenant, update_id),
    check ((status = 'submitted') = (decided_by is null)),
    check ((status = 'rejected') = (rejected_at is not null)),
    check ((status in ('submitted', 'rejected')) = (approved_at is null)),
    check (status <> 'deployed' or deployed_at is not null),
    check ((status = 'rolled_back') = (rolled_back_at is not null)),
    check (patched = 0 or base_hash is not null or status in ('submitted', 'rejected'))
);
CREATE INDEX governance_updates_by_time on governance_updates (tenant, submitted_at, update_id);
CREATE INDEX governance_updates_by_status on governance_updates (tenant, status, tier, submitted_at);
CREATE INDEX governance_updates_by_agent on governance_updates (tenant, agent_id, submitted_at);
CREATE INDEX governance_updates_to_deploy on governance_updates (updated_at)
    where patched = 1 and status in ('approved', 'deploying');
CREATE TABLE checkpoints (
    tenant text not null,
    checkpoint_id text not null,
    agent_id text not null,
    cause text not null check (cause = 'manual' or cause = 'deployment' or cause = 'clear_violations' or cause = 'trust_change'),
    state text not null,
    state_hash text not null,
    taken_by text not null,
    taken_at bigint not null,
    provenance_id text not null,
    primary key (tenant, checkpoint_id)
);
CREATE INDEX checkpoints_by_agent on checkpoints (tenant, agent_id, taken_at, checkpoint_id);
CREATE INDEX checkpoints_by_tenant on checkpoints (tenant, taken_at, checkpoint_id);
CREATE INDEX checkpoints_by_age on checkpoints (taken_at);
CREATE TABLE rollbacks (
    tenant text not null,
    rollback_id text not null,
    checkpoint_id text not null,
    agent_id text not null,
    update_id text,
    status text not null check (status = 'initiated' or status = 'in_progress' or status = 'completed' or status = 'failed'),
    initiated_by text not null,
    claimed_by text,
    reason text not null,
    details text,
    initiated_at bigint not null,
    estimated_completion bigint not null,
    completed_at bigint,
    verified integer not null check (verified in (0, 1)),
    notes text,
    provenance_id text not null,
    head_id text not null,
    primary key (tenant, rollback_id),
    check ((status in ('completed', 'failed')) = (completed_at is not null)),
    check ((status = 'completed') = (verified = 1))
);
CREATE INDEX rollbacks_by_time on rollbacks (tenant, initiated_at, rollback_id);
CREATE INDEX rollbacks_open on rollbacks (initiated_at) where status in ('initiated', 'in_progress')
;
CREATE TABLE grants (
    grant_id text primary key,
    tenant text not null,
    task_id text not null,
    from_agent text not null,
    to_agent text not null,
    capabilities text not null,
    parent_id text references grants (grant_id),
    depth integer not null check (depth between 1 and 4),
    granted_by text not null,
    created_at bigint not null,
    expires_at bigint not null,
    revoked_at bigint, epoch integer not null default 0,
    check ((depth = 1) = (parent_id is null))
);
CREATE INDEX grants_by_task on grants (tenant, task_id, grant_id);
CREATE INDEX grants_by_agent on grants (tenant, to_agent, grant_id)
;
CREATE TABLE task_grades (
        tenant text not null,
        task_id text not null,
        epoch integer not null,
        agent_id text not null,
        grade double precision not null check (grade >= 0 and grade <= 1),
        comment text,
        graded_by text not null,
        graded_at bigint not null,
        learned integer not null,
        primary key (tenant, task_id)
    );
CREATE TABLE taught_today (
    tenant text not null,
    agent_id text not null,
    submitted_by text not null,
    day bigint not null,
    n bigint not null,
    primary key (tenant, agent_id, submitted_by)
);
CREATE TABLE model_weights (
    tenant text not null,
    model text not null,
    kind text not null,
    weight double precision not null,
    mean_ms double precision not null,
    samples integer not null,
    recent text not null,
    updated_at bigint not null,
    rewards text not null,
    tick bigint not null,
    since_change integer not null,
    changed_tick bigint not null,
    mean_cost double precision, loads text not null default '',
    primary key (tenant, model, kind)
);
CREATE TABLE model_answers (
    tenant text not null,
    answer_id text not null,
    model text not null,
    kind text not null,
    key_name text not null,
    decision_id text not null,
    sample integer,
    answered_at bigint not null,
    grade double precision check (grade >= 0 and grade <= 1),
    comment text,
    graded_by text,
    graded_at bigint,
    primary key (tenant, answer_id)
);
CREATE INDEX model_answers_by_time on model_answers (answered_at);
CREATE TABLE api_keys (
    name text primary key,
    tenant text not null,
    digest text not null unique,
    hint text not null,
    role text not null check (role = 'viewer' or role = 'operator' or role = 'approver' or role = 'admin' or role = 'agent'),
    permissions text not null,
    description text not null,
    memory text not null,
    budgets text not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    expires_at bigint,
    revoked_at bigint,
    revoked_by text,
    last_used_at bigint, models text not null default '[]', team text not null default '',
    check ((revoked_at is null) = (revoked_by is null))
);
CREATE INDEX api_keys_of_tenant on api_keys (tenant, created_at, name);
CREATE INDEX api_keys_changed on api_keys (updated_at)
;
CREATE INDEX llm_calls_of_task on llm_calls (tenant, task_id, happened_at) where task_id is not null;
CREATE TABLE alerts (
    alert_id text primary key,
    tenant text not null,
    kind text not null,
    subject text not null,
    severity text not null check (severity in ('warning', 'critical')),
    message text not null,
    agent_id text,
    opened_at bigint not null,
    resolved_at bigint,
    mailed text not null check (mailed = '' or mailed = 'opened' or mailed = 'resolved')
);
CREATE UNIQUE INDEX alerts_one_open on alerts (tenant, kind, subject) where resolved_at is null;
CREATE INDEX alerts_of_tenant on alerts (tenant, opened_at, alert_id);
CREATE INDEX alerts_by_time on alerts (opened_at)
;
CREATE TABLE people (
    name text primary key,
    tenant text not null,
    issuer text not null,
    subject text,
    role text not null check (role = 'viewer' or role = 'operator' or role = 'approver' or role = 'admin'),
    permissions text not null,
    sessions text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    last_sign_in_at bigint not null,
    blocked_at bigint,
    blocked_by text, team text not null default '', member_of text,
    check ((blocked_at is null) = (blocked_by is null)),
    unique (issuer, subject)
);
CREATE INDEX people_of_tenant on people (tenant, name);
CREATE INDEX people_changed on people (updated_at);
CREATE TABLE llm_contents (
    call_id text primary key,
    tenant text not null,
    key_name text not null,
    request blob,
    response blob,
    redacted integer not null check (redacted in (0, 1)),
    truncated integer not null check (truncated in (0, 1)),
    kept_at bigint not null
);
CREATE INDEX llm_contents_by_time on llm_contents (kept_at, call_id);
CREATE TABLE llm_runtime_settings (
    tenant text primary key,
    budgets text not null,
    routes text not null,
    version integer not null check (version > 0),
    updated_at bigint not null
);
CREATE INDEX llm_runtime_settings_changed on llm_runtime_settings (updated_at);
CREATE TABLE task_steps (
    tenant text not null,
    task_id text not null,
    key text not null,
    event_id text not null,
    name text not null,
    kind text not null check (kind = 'step' or kind = 'effect' or kind = 'sleep' or kind = 'signal' or kind = 'question' or kind = 'child'),
    state text not null check (state = 'started' or state = 'completed' or state = 'failed'),
    position integer,
    epoch integer not null,
    encoding text not null check (encoding in ('json', 'base64')),
    value text,
    value_hash text,
    size bigint not null,
    error text,
    started_at bigint not null,
    ended_at bigint,
    wake_at bigint,
    reference text,
    options text, handled integer not null default 0 check (handled in (0, 1)), together text, deflated blob,
    primary key (tenant, task_id, key),
    check ((state = 'started') = (ended_at is null)),
    check ((state = 'failed') = (error is not null)),
    check ((state = 'completed') = (value is not null or value_hash is not null))
);
CREATE INDEX task_steps_in_order on task_steps (tenant, task_id, event_id);
CREATE INDEX task_steps_open on task_steps (tenant, kind, event_id) where state = 'started';
CREATE INDEX task_steps_due on task_steps (wake_at) where state = 'started' and wake_at is not null;
CREATE INDEX task_steps_of_children on task_steps (reference) where state = 'started' and kind = 'child';
CREATE TABLE step_values (
    tenant text not null,
    hash text not null,
    content blob not null, is_deflated integer not null default 0 check (is_deflated in (0, 1)),
    primary key (tenant, hash)
);
CREATE TABLE task_signals (
    tenant text not null,
    task_id text not null,
    event_id text not null,
    name text not null,
    value text not null,
    primary key (tenant, task_id, event_id)
);
CREATE TABLE schedules (
    tenant text not null,
    name text not null,
    cron text not null,
    timezone text not null,
    missed text not null check (missed = 'skip' or missed = 'one' or missed = 'all'),
    overlap text not null check (overlap in ('allow', 'skip')),
    task text not null,
    paused integer not null check (paused in (0, 1)),
    paused_reason text,
    next_at bigint,
    created_by text not null,
    runs_as text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    last_task_id text,
    primary key (tenant, name),
    check ((paused = 1) = (next_at is null))
);
CREATE INDEX schedules_due on schedules (next_at) where next_at is not null;
CREATE TABLE schedule_runs (
    tenant text not null,
    name text not null,
    run_id text not null,
    due_at bigint not null,
    happened_at bigint not null,
    outcome text not null check (outcome = 'submitted' or outcome = 'denied' or outcome = 'skipped'),
    task_id text,
    reason text,
    primary key (tenant, name, run_id)
);
CREATE TABLE sessions (
    tenant text not null,
    session_id text not null,
    name text,
    metadata text not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    item_count bigint not null default 0 check (item_count >= 0),
    value_count bigint not null default 0 check (value_count >= 0),
    stored_bytes bigint not null default 0 check (stored_bytes >= 0),
    last_number bigint not null default 0,
    held_by text,
    held_epoch bigint,
    primary key (tenant, session_id)
);
CREATE INDEX sessions_by_change on sessions (tenant, updated_at, session_id);
CREATE TABLE session_items (
    tenant text not null,
    session_id text not null,
    position bigint not null,
    kind text not null check (kind in ('message', 'summary')),
    source text not null check (source = 'own' or source = 'input' or source = 'result' or source = 'step'),
    value text,
    value_hash text,
    size bigint not null,
    created_at bigint not null,
    task_id text,
    step_key text,
    primary key (tenant, session_id, position),
    check (value is not null or value_hash is not null)
);
CREATE INDEX session_items_summaries on session_items (tenant, session_id, position) where kind = 'summary';
CREATE INDEX session_items_of_contents on session_items (tenant, value_hash) where value_hash is not null;
CREATE TABLE session_values (
    tenant text not null,
    session_id text not null,
    key text not null,
    number bigint not null,
    encoding text not null check (encoding in ('json', 'base64')),
    value text,
    value_hash text,
    size bigint not null,
    updated_at bigint not null,
    primary key (tenant, session_id, key),
    check (value is not null or value_hash is not null)
);
CREATE INDEX session_values_by_change on session_values (tenant, session_id, number);
CREATE INDEX session_values_of_contents on session_values (tenant, value_hash) where value_hash is not null;
CREATE INDEX task_steps_of_contents on task_steps (tenant, value_hash) where value_hash is not null;
CREATE TABLE parked_limits (
    tenant text not null,
    limit_key text not null,
    check_at bigint not null,
    primary key (tenant, limit_key)
);
CREATE INDEX parked_limits_due on parked_limits (check_at);
CREATE TABLE limit_starts (
    tenant text not null,
    limit_key text not null,
    started_at bigint not null,
    task_id text not null,
    epoch integer not null,
    primary key (tenant, limit_key, started_at, task_id, epoch)
);
CREATE TABLE alert_mails (
    mail_id text primary key,
    message_id text not null,
    subject text not null,
    body text not null,
    created_at bigint not null,
    sent_at bigint,
    given_up integer not null default 0
);
CREATE INDEX alert_mails_open on alert_mails (created_at) where sent_at is null and given_up = 0
;
CREATE TABLE clock_jumps (
    id integer primary key check (id = 1),
    noticed_at bigint not null
);
CREATE TABLE departed_agents (
    tenant text not null,
    agent_id text not null,
    left_at bigint not null,
    primary key (tenant, agent_id)
);
CREATE TABLE memory_invalidations (
    invalidation_id text primary key,
    source text not null,
    reason text not null,
    invalidated_by text not null,
    invalidated_at bigint not null,
    restored_by text,
    restored_at bigint,
    restore_reason text
);
CREATE UNIQUE INDEX memory_invalidations_active on memory_invalidations (source) where restored_at is null;
CREATE TABLE archives (
    number bigint primary key check (number > 0),
    name text not null unique,
    tenant text not null,
    tasks bigint not null check (tasks >= 0),
    events bigint not null check (events >= 0),
    size_bytes bigint not null check (size_bytes >= 0),
    first_at bigint,
    last_at bigint,
    started_at bigint not null,
    ended_at bigint,
    event_id text,
    check ((ended_at is null) = (event_id is null))
);
CREATE TABLE archived_tasks (
    tenant text not null,
    task_id text not null,
    submitted_by text not null,
    archive bigint not null,
    primary key (tenant, task_id)
) without rowid;
CREATE TABLE archived_events (
    number integer primary key,
    archive bigint not null
);
CREATE INDEX archived_events_of_archive on archived_events (archive);
CREATE INDEX session_items_of_tasks on session_items (tenant, task_id) where source <> 'own'
;
CREATE TABLE task_spent (
    tenant text not null,
    task_id text not null,
    cost bigint not null,
    primary key (tenant, task_id)
);
CREATE INDEX task_steps_open_of_task on task_steps (tenant, task_id, event_id) where state = 'started';
CREATE TABLE llm_usage (
    tenant text not null,
    day bigint not null,
    provider text not null,
    model text not null,
    requests bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cost bigint not null,
    estimated bigint not null,
    unpriced bigint not null,
    primary key (tenant, day, provider, model)
) without rowid;
CREATE TABLE llm_usage_marks (
    tenant text not null primary key,
    summed_until bigint not null
);
CREATE TRIGGER atp_messages_moves before update of status on atp_messages when old.status <> new.status and instr(' queued>executing executing>queued executing>completed executing>failed ', ' ' || old.status || '>' || new.status || ' ') = 0
        begin select raise(abort, 'a message does not make this move'); end;
CREATE TRIGGER webhook_deliveries_moves before update of status on webhook_deliveries when old.status <> new.status and instr(' waiting>sending sending>waiting sending>delivered sending>failed ', ' ' || old.status || '>' || new.status || ' ') = 0
        begin select raise(abort, 'a delivery does not make this move'); end;
CREATE TRIGGER governance_updates_moves before update of status on governance_updates when old.status <> new.status and instr(' submitted>approved submitted>rejected approved>deploying deploying>deployed deploying>rolled_back deployed>rolled_back ', ' ' || old.status || '>' || new.status || ' ') = 0
            begin select raise(abort, 'an update does not make this move'); end;
CREATE TRIGGER rollbacks_moves before update of status on rollbacks when old.status <> new.status and instr(' initiated>in_progress in_progress>completed in_progress>failed ', ' ' || old.status || '>' || new.status || ' ') = 0
            begin select raise(abort, 'a rollback does not make this move'); end;
CREATE TABLE tasks (
    tenant text not null,
    task_id text not null,
    status text not null check (status = 'queued' or status = 'pending_approval' or status = 'executing' or status = 'waiting' or status = 'completed' or status = 'failed' or status = 'aborted' or status = 'cancelled'),
    type text not null,
    priority integer not null check (priority between 0 and 3),
    assigned_agent text,
    runtime_kind text,
    created_at bigint not null,
    queued_at bigint not null,
    start_time bigint,
    completion_time bigint,
    timeout_seconds integer not null check (timeout_seconds between 1 and 86400),
    epoch integer not null check (epoch >= 0),
    attempt_epoch integer not null,
    lease_until bigint,
    deadline_at bigint,
    outcome_class text check (outcome_class = 'success' or outcome_class = 'degraded_success' or outcome_class = 'agent_failure' or outcome_class = 'provider_failure' or outcome_class = 'timeout' or outcome_class = 'cancelled' or outcome_class = 'routing_failed'),
    learning_eligible integer,
    learning_pending integer not null default 0,
    performance double precision,
    provenance_id text not null,
    head_id text not null,
    parent_task_id text,
    submitted_by text not null,
    submitted_status text not null,
    estimated_start bigint not null,
    estimated_completion bigint not null,
    body_hash text not null,
    required_capabilities text not null,
    agent_preference text,
    metadata text not null,
    error text,
    queue_timeout_seconds integer, queue_deadline_at bigint, title text, pinned_agent text, retry_epoch integer not null default 0, limit_key text, limit_max integer, parked integer not null default 0, turn bigint not null default 0, session_id text, first_started_at bigint, heartbeat_at bigint, limit_seconds integer not null default 0, end_by bigint,
    result text,
    input text not null,
    primary key (tenant, task_id),
    check (status <> 'executing' or (lease_until is not null and deadline_at is not null and epoch > 0)),
    check ((status = 'completed' or status = 'failed' or status = 'aborted' or status = 'cancelled') = (completion_time is not null))
);
CREATE INDEX tasks_by_time on tasks (tenant, created_at, task_id);
CREATE INDEX tasks_by_status on tasks (tenant, status, created_at, task_id);
CREATE INDEX tasks_by_agent on tasks (tenant, assigned_agent, created_at, task_id);
CREATE INDEX tasks_by_agent_status on tasks (tenant, assigned_agent, status, created_at, task_id);
CREATE INDEX tasks_unlearned on tasks (completion_time) where learning_pending = 1;
CREATE INDEX tasks_by_queue_deadline on tasks (queue_deadline_at) where status = 'queued' and queue_deadline_at is not null;
CREATE INDEX tasks_by_submitter on tasks (tenant, submitted_by, created_at, task_id);
CREATE INDEX tasks_by_parent on tasks (tenant, parent_task_id, created_at, task_id) where parent_task_id is not null;
CREATE INDEX tasks_by_type on tasks (tenant, type, created_at, task_id);
CREATE INDEX tasks_running_by_limit on tasks (tenant, limit_key) where status = 'executing' and limit_key is not null;
CREATE INDEX tasks_parked on tasks (tenant, limit_key, priority, queued_at) where status = 'queued' and parked = 1;
CREATE INDEX tasks_of_sessions on tasks (tenant, session_id, created_at, task_id) where session_id is not null
;
CREATE INDEX tasks_in_lanes on tasks (assigned_agent, priority, submitted_by, queued_at, task_id) where status = 'queued' and parked = 0;
CREATE INDEX tasks_parked_by_period on tasks (tenant, limit_key, limit_seconds, limit_max desc)
    where status = 'queued' and parked = 1
;
CREATE INDEX tasks_with_deadline on tasks (end_by) where end_by is not null and completion_time is null;
CREATE TRIGGER tasks_moves before update of status on tasks when old.status <> new.status and instr(' queued>executing queued>failed queued>cancelled queued>aborted pending_approval>queued pending_approval>waiting pending_approval>aborted pending_approval>cancelled executing>completed executing>failed executing>aborted executing>queued executing>cancelled executing>waiting waiting>queued waiting>cancelled waiting>aborted failed>queued failed>pending_approval aborted>queued aborted>pending_approval ', ' ' || old.status || '>' || new.status || ' ') = 0
        begin select raise(abort, 'a task does not make this move'); end;
CREATE TABLE cancelled_parents (tenant text not null, task_id text not null, seen_created_at bigint not null default 0, seen_task_id text not null default '', primary key (tenant, task_id));
CREATE TABLE child_checks (
        check_at bigint not null,
        tenant text not null,
        task_id text not null,
        event_id text not null,
        primary key (check_at, tenant, task_id, event_id)
    );
CREATE TRIGGER tasks_end_waits after update of status on tasks when new.completion_time is not null and old.completion_time is null begin insert into child_checks (check_at, tenant, task_id, event_id)
    select 0, new.tenant, new.task_id, new.head_id where exists (select 1 from task_steps
        where reference = new.task_id and tenant || '' = new.tenant and state = 'started' and kind = 'child')
    on conflict do nothing; end;
CREATE TABLE alert_thresholds (
    tenant text primary key,
    failure_percent double precision,
    wait_seconds double precision,
    budget_percent double precision,
    set_by text not null,
    set_at bigint not null
);
CREATE INDEX events_audited on events (tenant, event_id) where event_type = 'agent_registered' or event_type = 'agent_status_changed' or event_type = 'agent_updated' or event_type = 'alert_thresholds_changed' or event_type = 'approval_given' or event_type = 'approval_refused' or event_type = 'authority_granted' or event_type = 'authority_revoked' or event_type = 'budget_changed' or event_type = 'checkpoint_taken' or event_type = 'connection_changed' or event_type = 'content_deleted' or event_type = 'dispatch_denied' or event_type = 'history_accepted' or event_type = 'key_changed' or event_type = 'memory_invalidated' or event_type = 'memory_restored' or event_type = 'model_route_changed' or event_type = 'person_changed' or event_type = 'provider_changed' or event_type = 'rollback_completed' or event_type = 'rollback_failed' or event_type = 'rollback_started' or event_type = 'schedule_changed' or event_type = 'session_deleted' or event_type = 'sign_in_refused' or event_type = 'signed_in' or event_type = 'tool_denied' or event_type = 'trust_changed' or event_type = 'update_approved' or event_type = 'update_deployed' or event_type = 'update_rejected' or event_type = 'update_rolled_back' or event_type = 'update_submitted' or event_type = 'violation_recorded' or event_type = 'webhook_changed' or event_type = 'webhook_disabled';
CREATE TABLE llm_spent (
    tenant text not null,
    kind text not null check (kind in ('key', 'agent', 'team')),
    subject text not null,
    day bigint not null,
    tokens bigint not null,
    cost bigint not null,
    primary key (tenant, kind, subject, day)
);
CREATE INDEX llm_spent_by_day on llm_spent (tenant, kind, day);
CREATE INDEX tasks_leased on tasks (deadline_at) where status = 'executing';
insert into alembic_version values ('0064');
