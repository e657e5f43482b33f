"""What a policy file can speak of: the entities, the actions and the context of each, as a Cedar schema."""

from __future__ import annotations

SCHEMA = """
entity Agent = {
  name: String, tenant: String, capabilities: Set<String>, trust_tier: String, status: String,
  runtime: String, composite: decimal,
};
entity Principal;
entity TaskType;
entity Tool;
action "route" appliesTo {
  principal: Agent, resource: TaskType,
  context: { required_capabilities: Set<String>, preferred: Bool, trust?: decimal },
};
action "propose_update" appliesTo {
  principal: Principal, resource: Agent,
  context: {
    update_type: String, tier: Long, lines_changed: Long, files_modified: Set<String>, patched_fields: Set<String>,
    trust?: decimal, ratio?: decimal, breaking?: Bool, new_dependencies?: Bool, touches_policy?: Bool,
  },
};
action "use_tool" appliesTo {
  principal: Agent, resource: Tool,
  context: { operation: String, path?: String, host?: String, port?: Long },
};
"""

TYPES = {
    "route": ("Agent", "TaskType"),
    "propose_update": ("Principal", "Agent"),
    "use_tool": ("Agent", "Tool"),
}
"""Action to the types of its principal and its resource."""
DECIMALS = frozenset(("trust", "ratio", "composite"))
"""Cedar has no floats: these are decimals with four digits."""
AGENT_DEFAULTS = {
    "name": "agent",
    "tenant": "default",
    "capabilities": [],
    "trust_tier": "monitored",
    "status": "active",
    "runtime": "worker",
    "composite": 0.5,
}
"""What an example request need not say of an agent."""
