"""Commands about agents and what they may do: agents, governance, policy files and receipts."""
