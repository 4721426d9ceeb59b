"""What tenants and namespaces prescribe: who may have topics, and how these are kept."""
