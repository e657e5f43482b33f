"""The run log for other tools: W3C PROV-JSON, and spans of OpenTelemetry."""
